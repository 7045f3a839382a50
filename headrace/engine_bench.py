"""Measures a loaded engine: prefill by prompt length, decode by batch and context, step times and memory."""

import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from engine.types import GenerationRequest
from headrace.bare import BareModel
from headrace.estimate import Estimate, median
from models.kv_keys import BLOCK_SIZE
from schemas.errors import EngineFault, SettingsError
from schemas.sampling import SamplingParams
from schemas.settings import Settings

_MS_PER_S = 1000
_KB = 1024
_PROC_STATUS = Path("/proc/self/status")
# What prompts are made of: in every vocabulary, and in none the end of the text.
_TOKEN_IDS = range(10, 250)

Advance = Callable[[float], None]


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured: each batch with each context."""

    batches: Sequence[int]
    contexts: Sequence[int]
    num_steps: int
    num_prefills: int


class PrefillFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt alone, from asking to its first token."""

    prompt_tokens: int
    ttft_ms: Estimate
    tokens_per_s: Estimate


class DecodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences that decode together: one step gives each a token, so that a step's time is the time per output token
    (TPOT). `kv_bytes` is what their keys and values take."""

    batch: int
    context: int
    tpot_ms: Estimate
    tokens_per_s: Estimate
    kv_bytes: int


class MemoryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Resident bytes of this process after the load and at most, and what is reserved for keys and values."""

    rss_loaded_bytes: int
    rss_peak_bytes: int
    kv_bytes_per_token: int
    kv_capacity_tokens: int


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """All figures, with what must stand beside them."""

    model: str
    processor: str
    num_threads: int
    dtype: str
    load_s: float
    memory: MemoryFigures
    prefill: list[PrefillFigures]
    decode: list[DecodeFigures]


class EngineBench:
    """One run. SettingsError if the model's context or its KV memory is too small for what is asked."""

    def __init__(self, bare: BareModel, shape: Shape) -> None:
        self._bare = bare
        self._shape = shape
        self._num_asked = 0
        self._check()

    @property
    def num_units(self) -> int:
        """How much there is to do, in the unit of `advance`: rows of prompts and steps, each about as long."""
        shape = self._shape
        warm_up = max(shape.contexts)
        prefill = shape.num_prefills * sum(shape.contexts)
        decode = max(shape.batches) * sum(shape.contexts)
        return warm_up + prefill + decode + len(shape.contexts) * len(shape.batches) * shape.num_steps

    def run(self, advance: Advance) -> EngineReport:
        """Measure everything. `advance` is told how many units are done."""
        rss_loaded = _rss_bytes()
        self._prefill(max(self._shape.contexts), advance)
        prefill = [self._measure_prefill(context, advance) for context in self._shape.contexts]
        decode = [
            self._measure_decode(batch, context, advance)
            for context in self._shape.contexts
            for batch in self._shape.batches
        ]
        bare, stats = self._bare, self._bare.engine.stats()
        return EngineReport(
            model=bare.name,
            processor=_processor(),
            num_threads=bare.config.threads,
            dtype=str(bare.config.torch_dtype).removeprefix("torch."),
            load_s=bare.load_s,
            memory=MemoryFigures(
                rss_loaded_bytes=rss_loaded,
                rss_peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KB,
                kv_bytes_per_token=self._kv_bytes(1),
                kv_capacity_tokens=stats.kv_blocks_total * BLOCK_SIZE,
            ),
            prefill=prefill,
            decode=decode,
        )

    def _measure_prefill(self, context: int, advance: Advance) -> PrefillFigures:
        seconds = [self._prefill(context, advance) for _ in range(self._shape.num_prefills)]
        return PrefillFigures(
            prompt_tokens=context,
            ttft_ms=median(seconds).scaled(_MS_PER_S),
            tokens_per_s=median([context / one for one in seconds]),
        )

    def _prefill(self, context: int, advance: Advance) -> float:
        """Seconds to the first token of a prompt of which nothing is cached."""
        self._num_asked += 1
        request = self._request(self._num_asked, context, max_tokens=1)
        started_s = time.monotonic()
        self._until_idle(request, advance)
        return time.monotonic() - started_s

    def _until_idle(self, request: GenerationRequest, advance: Advance) -> None:
        before = self._bare.engine.stats().num_prompt_tokens
        self._bare.engine.add(request)
        while self._bare.engine.has_work:
            self._bare.engine.step()
        advance(self._bare.engine.stats().num_prompt_tokens - before)

    def _measure_decode(self, batch: int, context: int, advance: Advance) -> DecodeFigures:
        """The prompts are in the prefix cache before the batch begins, so that all of it decodes from the first step
        on; those of a smaller batch are the first ones of a larger, and computed once."""
        for place in range(batch):
            self._until_idle(self._request(-1 - place, context, max_tokens=1), advance)
        requests = [self._request(-1 - place, context, max_tokens=self._max_tokens) for place in range(batch)]
        for request in requests:
            self._bare.engine.add(request)
        self._until_all_decode(batch)
        seconds = [self._timed_step(batch) for _ in range(self._shape.num_steps)]
        advance(self._shape.num_steps)
        used = self._bare.engine.stats().kv_blocks_used
        for request in requests:
            self._bare.engine.cancel(request.request_id)
        return DecodeFigures(
            batch=batch,
            context=context,
            tpot_ms=median(seconds).scaled(_MS_PER_S),
            tokens_per_s=median([batch / one for one in seconds]),
            kv_bytes=self._kv_bytes(used * BLOCK_SIZE),
        )

    def _until_all_decode(self, batch: int) -> None:
        seen: set[str] = set()
        while len(seen) < batch:
            seen |= {output.request_id for output in self._bare.engine.step()}

    def _timed_step(self, batch: int) -> float:
        started_s = time.monotonic()
        outputs = self._bare.engine.step()
        elapsed_s = time.monotonic() - started_s
        if len(outputs) != batch:
            raise EngineFault(f"a step gave {len(outputs)} tokens for {batch} sequences that all decode")
        return elapsed_s

    def _request(self, number: int, num_tokens: int, *, max_tokens: int) -> GenerationRequest:
        """Greedy; no two numbers share the beginning of a prompt."""
        ids = random.Random(number).choices(_TOKEN_IDS, k=num_tokens)  # noqa: S311 (text to measure with, no secret)
        return GenerationRequest(
            request_id=f"bench{number}",
            prompt_token_ids=ids,
            sampling=SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=True),
        )

    @property
    def _max_tokens(self) -> int:
        """Enough that no sequence ends before the last one is measured, also where prompts are not cached."""
        most_rows = max(self._shape.batches) * max(self._shape.contexts)
        return self._shape.num_steps + 2 + most_rows // self._bare.config.max_tokens_per_step

    def _kv_bytes(self, num_tokens: int) -> int:
        spec, itemsize = self._bare.model.spec, self._bare.config.torch_dtype.itemsize
        return 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * itemsize * num_tokens

    def _check(self) -> None:
        shape, spec = self._shape, self._bare.model.spec
        longest = max(shape.contexts) + self._max_tokens
        if longest > spec.context_length:
            raise SettingsError(
                f"{longest} tokens do not fit the model's context, {spec.context_length}: lower --context"
            )
        needed = max(shape.batches) * -(-longest // BLOCK_SIZE)
        total = self._bare.engine.stats().kv_blocks_total
        if needed > total:
            raise SettingsError(
                f"{max(shape.batches)} sequences of {longest} tokens need {needed} KV blocks, and there are {total}: "
                f"--set engine.kv_bytes={self._kv_bytes((needed + 1) * BLOCK_SIZE)}, or lower --batch or --context"
            )


def fitting_settings(settings: Settings, shape: Shape) -> Settings:
    """Settings in which the largest batch may run at once, and no draft makes a step give more than a token."""
    engine = settings.engine
    max_running = max(engine.max_running, *shape.batches)
    rows = max(engine.max_tokens_per_step, max_running)
    engine = msgspec.structs.replace(engine, max_running=max_running, max_tokens_per_step=rows, proposer="none")
    return msgspec.structs.replace(settings, engine=engine)


def _rss_bytes() -> int:
    lines = dict(line.split(":", 1) for line in _PROC_STATUS.read_text().splitlines() if ":" in line)
    return int(lines["VmRSS"].split()[0]) * _KB


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return sys.platform
