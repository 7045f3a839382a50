"""The metrics of all roles in one place. Where vLLM has the same thing, it has the same name under our prefix."""

from collections.abc import Callable, Iterable

from prometheus_client import REGISTRY, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class AskedCounter(Collector):
    """A counter whose owner counts by itself and is asked when metrics are read: `Gauge.set_function` for counters."""

    def __init__(self, name: str, documentation: str) -> None:
        self._name = name
        self._documentation = documentation
        self._count: Callable[[], float] = float
        REGISTRY.register(self)

    def set_function(self, count: Callable[[], float]) -> None:
        """Ask this from now on; without, the counter stands at 0."""
        self._count = count

    def collect(self) -> Iterable[Metric]:
        """The counter's present value."""
        yield CounterMetricFamily(self._name, self._documentation, value=self._count())


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKEN_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)

REQUESTS_RUNNING = Gauge("headrace:num_requests_running", "Requests in the engine's batch")
REQUESTS_WAITING = Gauge("headrace:num_requests_waiting", "Requests that wait in the engine")
KV_USAGE = Gauge("headrace:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1")
SPEC_DECODE_DRAFTS = AskedCounter("headrace:spec_decode_num_drafts", "Drafts of tokens that may come next")
SPEC_DECODE_DRAFT_TOKENS = AskedCounter("headrace:spec_decode_num_draft_tokens", "Tokens in drafts")
SPEC_DECODE_ACCEPTED_TOKENS = AskedCounter("headrace:spec_decode_num_accepted_tokens", "Drafted tokens that were right")
FAILED_STEPS = AskedCounter("headrace:engine_failed_steps", "Steps of the engine that raised")
PREEMPTIONS = AskedCounter("headrace:num_preemptions", "Sequences that started over to make room")
PROMPT_TOKENS = Counter("headrace:prompt_tokens", "Prompt tokens of ended requests")
GENERATION_TOKENS = Counter("headrace:generation_tokens", "Tokens generated")
TTFT_SECONDS = Histogram("headrace:time_to_first_token_seconds", "Acceptance to first token", buckets=_SECONDS)
TPOT_SECONDS = Histogram(
    "headrace:time_per_output_token_seconds", "Between tokens of a request", buckets=_TOKEN_SECONDS
)
E2E_SECONDS = Histogram("headrace:e2e_request_latency_seconds", "Acceptance to terminal record", buckets=_SECONDS)
REQUESTS_ENDED = Counter("headrace:requests_ended", "Terminal records written", ["status"])

RECORDS_IN = Counter("headrace:records_consumed", "Records consumed", ["topic"])
RECORDS_REFUSED = Counter("headrace:records_refused", "Records that ended in an error", ["stage", "code"])
DEAD_LETTERS = Counter("headrace:dead_letters", "Records written to dead-letters", ["stage"])
STORAGE_WAITING = Gauge("headrace:num_waiting_for_storage", "Calls that wait for an object storage that is away")
TURNS_PARKED = Gauge("headrace:session_turns_parked", "Turns that wait for their predecessor")
TAKEOVERS = Counter("headrace:partition_takeovers", "Partitions taken over")
STAGE_SECONDS = Histogram("headrace:pipeline_stage_seconds", "Time in one pipeline stage", ["stage"], buckets=_SECONDS)
