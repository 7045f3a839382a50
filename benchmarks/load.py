"""Drives a bare engine with requests that come when they come, and notes when each token was given out."""

import random
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from benchmarks.report import percentile
from engine.thread import EngineThread
from engine.types import GenerationOutput, GenerationRequest
from schemas.sampling import SamplingParams

# What prompts are made of: in every vocabulary, and in none the end of the text.
_TOKEN_IDS = range(10, 250)
_MS_PER_S = 1000


@dataclass
class Timeline:
    """One request: when it was due, and when each of its tokens came, on the monotonic clock in seconds."""

    due_s: float = 0.0
    times_s: list[float] = field(default_factory=list)
    num_cached_tokens: int = 0

    @property
    def ttft_ms(self) -> float:
        """From when it was due, not from when it could be sent: waiting to be sent is waiting."""
        return (self.times_s[0] - self.due_s) * _MS_PER_S

    @property
    def tpot_ms(self) -> float:
        """Time per output token after the first."""
        return (self.times_s[-1] - self.times_s[0]) * _MS_PER_S / (len(self.times_s) - 1)


@dataclass(frozen=True)
class Due:
    """A request and when it comes, in seconds from the start."""

    at_s: float
    request: GenerationRequest


class Load:
    """Requests under way in an engine."""

    def __init__(self, engine: EngineThread) -> None:
        self._engine = engine
        self._open: set[str] = set()
        self._changed = threading.Condition()
        self._error: str | None = None
        self.timelines: dict[str, Timeline] = {}

    def drive(self, dues: Iterable[Due]) -> dict[str, Timeline]:
        """Send each when it is due and wait for the end of all; their timelines by request id."""
        started_s = time.monotonic()
        names = []
        for due in sorted(dues, key=lambda due: due.at_s):
            time.sleep(max(0.0, started_s + due.at_s - time.monotonic()))
            self.send(due.request, due_s=started_s + due.at_s)
            names.append(due.request.request_id)
        self.wait(names)
        return {name: self.timelines[name] for name in names}

    def send(self, request: GenerationRequest, *, due_s: float | None = None) -> None:
        """Send one now."""
        name = request.request_id
        self.timelines[name] = Timeline(time.monotonic() if due_s is None else due_s)
        with self._changed:
            self._open.add(name)
        self._engine.submit(request, self._hear)

    def wait(self, names: Iterable[str]) -> None:
        """Wait until these have ended. RuntimeError if any request failed."""
        awaited = set(names)
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not awaited & self._open)
        if self._error is not None:
            raise RuntimeError(self._error)

    def cancel_all(self) -> None:
        """End what is still under way."""
        with self._changed:
            left = set(self._open)
        for name in left:
            self._engine.cancel(name)
        self.wait(left)

    def _hear(self, output: GenerationOutput) -> None:
        """In the engine's thread."""
        timeline = self.timelines[output.request_id]
        timeline.times_s += [time.monotonic()] * len(output.token_ids)
        timeline.num_cached_tokens = output.num_cached_tokens
        if output.finish_reason is None:
            return
        with self._changed:
            self._open.discard(output.request_id)
            if output.error is not None:
                self._error = output.error.message
            self._changed.notify_all()


def completion(
    request_id: str, token_ids: Sequence[int], *, max_tokens: int, priority_class: str = "interactive"
) -> GenerationRequest:
    """A greedy completion of exact length."""
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=list(token_ids),
        sampling=SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=True),
        priority_class="bulk" if priority_class == "bulk" else "interactive",
    )


def text_of(rng: random.Random, num_tokens: int) -> list[int]:
    """Tokens that no other prompt shares."""
    return rng.choices(_TOKEN_IDS, k=num_tokens)


def p50(values: Sequence[float]) -> float:
    """The median, by nearest rank."""
    return percentile(values, 0.5)


def p99(values: Sequence[float]) -> float:
    """The 99th percentile, by nearest rank."""
    return percentile(values, 0.99)
