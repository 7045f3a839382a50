"""The metrics of a worker: what each request took, and what the engine does now."""

from collections.abc import Callable

from consumers.worker.request import RunningRequest
from consumers.worker.results import seconds_per_token
from engine.types import EngineStats
from runtime.metrics import (
    E2E_SECONDS,
    FAILED_STEPS,
    GENERATION_TOKENS,
    KV_USAGE,
    PREEMPTIONS,
    PROMPT_TOKENS,
    REQUESTS_ENDED,
    REQUESTS_RUNNING,
    REQUESTS_WAITING,
    SPEC_DECODE_ACCEPTED_TOKENS,
    SPEC_DECODE_DRAFT_TOKENS,
    SPEC_DECODE_DRAFTS,
    TPOT_SECONDS,
    TTFT_SECONDS,
)
from schemas.results import Result

_MS_PER_S = 1000


def watch_engine(stats: Callable[[], EngineStats]) -> None:
    """Let the gauges ask the engine whenever they are read."""
    REQUESTS_RUNNING.set_function(lambda: stats().num_running)
    REQUESTS_WAITING.set_function(lambda: stats().num_waiting)
    KV_USAGE.set_function(lambda: _kv_usage(stats()))
    FAILED_STEPS.set_function(lambda: stats().num_failed_steps)
    PREEMPTIONS.set_function(lambda: stats().num_preemptions)
    SPEC_DECODE_DRAFTS.set_function(lambda: stats().num_drafts)
    SPEC_DECODE_DRAFT_TOKENS.set_function(lambda: stats().num_draft_tokens)
    SPEC_DECODE_ACCEPTED_TOKENS.set_function(lambda: stats().num_accepted_tokens)


def observe_end(request: RunningRequest, terminal: Result) -> None:
    """Count one request whose terminal record is written. Tokens of earlier attempts were counted elsewhere."""
    REQUESTS_ENDED.labels(status=terminal.status).inc()
    PROMPT_TOKENS.inc(request.usage.prompt_tokens)
    GENERATION_TOKENS.inc(request.usage.completion_tokens - request.num_tokens_before)
    if (per_token_s := seconds_per_token(request)) is not None:
        TPOT_SECONDS.observe(per_token_s)
    timings = terminal.timings
    if timings is not None and timings.total_ms is not None:
        E2E_SECONDS.observe(timings.total_ms / _MS_PER_S)
    if timings is not None and timings.ttft_ms is not None:
        TTFT_SECONDS.observe(timings.ttft_ms / _MS_PER_S)


def _kv_usage(stats: EngineStats) -> float:
    return stats.kv_blocks_used / stats.kv_blocks_total if stats.kv_blocks_total else 0.0
