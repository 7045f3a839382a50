"""A pool of child processes that build prompts. One that dies or hangs costs a retry, twice on one request its refusal.

Each child answers in order, so the request that it died on is known: the oldest one unanswered. The others just run
again elsewhere. Several requests are on their way to a child at once, so that it need not wait for ours to be sent.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NoReturn

from pipeline.claimed import ClaimedBody
from pipeline.context import ModelFacts, PromptJob
from pipeline.prompt_process import PromptProcess, error_of
from pipeline.prompt_wire import Built, Job, Read, Refused, framed
from runtime.logging import get_logger
from schemas.errors import HeadraceError, PromptFault
from schemas.names import LANES, Lane
from schemas.served import ServedRequest

log = get_logger(__name__)

# Hides the way there and back behind the work, and keeps little waiting behind one slow prompt.
_MAX_UNANSWERED = 4
_MAX_DEATHS = 2
_MAX_FAILED_STARTS = 3
# Of this many prompts one is of the bulk lane while both lanes wait: it may be slow, and it must not starve.
_BULK_TURN = 4
_TIME_LIMIT_S = 30.0


class _Call:
    """One job for a child, until it is answered."""

    def __init__(self, job: Job, lane: Lane) -> None:
        self.frame = framed(job)
        self.lane = lane
        self.num_deaths = 0
        self.answer: asyncio.Future[Built | Read] = asyncio.get_running_loop().create_future()

    def fail(self, error: HeadraceError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def succeed(self, answer: Built | Read) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)


class _Waiting:
    """Calls that no child has yet: interactive ones first, except where it is the bulk lane's turn."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, deque[_Call]] = {lane: deque() for lane in LANES}
        self._num_taken = 0

    def put(self, call: _Call) -> None:
        self._lanes[call.lane].append(call)

    def put_back(self, calls: Sequence[_Call]) -> None:
        for call in reversed(calls):
            self._lanes[call.lane].appendleft(call)

    def take(self) -> _Call | None:
        """The next call that somebody still waits for."""
        self._num_taken += 1
        for lane in LANES if self._num_taken % _BULK_TURN else reversed(LANES):
            calls = self._lanes[lane]
            while calls:
                call = calls.popleft()
                if not call.answer.done():
                    return call
        return None


class PromptPool:
    """Builds prompts in `num_processes` child processes, each with all `models` (name to path) loaded."""

    def __init__(self, models: Mapping[str, str], *, num_processes: int, time_limit_s: float = _TIME_LIMIT_S) -> None:
        self._models = models
        self._time_limit_s = time_limit_s
        self._waiting = _Waiting()
        self._places = [_Place() for _ in range(num_processes)]
        self._tasks: list[asyncio.Task[None]] = []
        self._facts: dict[str, ModelFacts] = {}
        self._has_facts = asyncio.Event()

    @property
    def pids(self) -> list[int]:
        """Process ids of the children that are ready."""
        return [place.process.pid for place in self._places if place.process and place.process.pid]

    @property
    def is_ready(self) -> bool:
        """Whether some child can build prompts now."""
        return any(place.process for place in self._places)

    async def facts(self, model: str) -> ModelFacts:
        """What is known of one of its models. Waits for the first child that has loaded them."""
        await self._has_facts.wait()
        return self._facts[model]

    async def start(self) -> None:
        """Start the children; returns when all have loaded their models.

        Raises:
            ModelFileError: a model cannot be loaded.
            PromptFault: the children die before they are ready.
        """
        self._tasks = [asyncio.create_task(self._keep(place)) for place in self._places]
        ready = asyncio.create_task(self._all_started())
        try:
            done, _ = await asyncio.wait([ready, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        for ended in done:
            ended.result()

    async def run(self) -> None:
        """Ends only with the error of a child that cannot be replaced. Cancelling it does not stop the pool."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for ended in done:
            ended.result()

    async def stop(self) -> None:
        """End the children. Calls that are under way stay unanswered."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def build(self, job: PromptJob, *, lane: Lane = "interactive") -> list[int]:
        """The token ids of a prompt.

        Raises:
            RequestError: no prompt can be built from this request.
            PromptFault: building it killed its process, twice.
        """
        answer = await self._answer(job, lane)
        return answer.token_ids if isinstance(answer, Built) else _unexpected(answer)

    async def read(self, job: ClaimedBody, *, lane: Lane = "interactive") -> ServedRequest:
        """A request whose heavy fields lie in an object. Raises as `build` does."""
        answer = await self._answer(job, lane)
        return answer.request if isinstance(answer, Read) else _unexpected(answer)

    async def _answer(self, job: Job, lane: Lane) -> Built | Read:
        call = _Call(job, lane)
        self._waiting.put(call)
        self._dispatch()
        return await call.answer

    async def _all_started(self) -> None:
        for place in self._places:
            await place.has_started.wait()

    async def _keep(self, place: "_Place") -> None:
        """Keep one place filled: start a child, hear its answers until it dies, start another."""
        num_failed_starts = 0
        while True:
            process = await PromptProcess.start(self._models, self._time_limit_s)
            try:
                self._facts = await process.ready()
                self._has_facts.set()
                num_failed_starts = 0
                place.fill(process)
                self._dispatch()
                await self._hear(place, process)
            except PromptFault:
                num_failed_starts += 1
                if num_failed_starts >= _MAX_FAILED_STARTS:
                    raise
            finally:
                self._vacate(place)
                await process.end()
            log.warning("prompt_process_died", pid=process.pid)

    async def _hear(self, place: "_Place", process: PromptProcess) -> None:
        while (answer := await process.answer()) is not None:
            call = place.unanswered.popleft()
            if isinstance(answer, Built | Read):
                call.succeed(answer)
            elif isinstance(answer, Refused):
                call.fail(error_of(answer.error))
            self._dispatch()

    def _vacate(self, place: "_Place") -> None:
        """Its child is dead; the oldest unanswered call is the one that it died on."""
        calls = place.vacate()
        if calls:
            calls[0].num_deaths += 1
            if calls[0].num_deaths >= _MAX_DEATHS:
                calls.pop(0).fail(PromptFault("building this request's prompt killed or hung its process, twice"))
        self._waiting.put_back(calls)
        self._dispatch()

    def _dispatch(self) -> None:
        while True:
            free = [place for place in self._places if place.has_room]
            if not free or (call := self._waiting.take()) is None:
                return
            min(free, key=lambda place: len(place.unanswered)).send(call)


def _unexpected(answer: Built | Read) -> NoReturn:
    raise PromptFault(f"the process that builds prompts has answered another question: {type(answer).__name__}")


class _Place:
    """One place in the pool, filled by one child after the other."""

    def __init__(self) -> None:
        self.process: PromptProcess | None = None
        self.unanswered: deque[_Call] = deque()
        self.has_started = asyncio.Event()

    @property
    def has_room(self) -> bool:
        return self.process is not None and len(self.unanswered) < _MAX_UNANSWERED

    def fill(self, process: PromptProcess) -> None:
        self.process = process
        self.has_started.set()

    def send(self, call: _Call) -> None:
        if self.process is not None:
            self.unanswered.append(call)
            self.process.send(call.frame)

    def vacate(self) -> list[_Call]:
        """No child any more; what it has not answered."""
        self.process = None
        calls = list(self.unanswered)
        self.unanswered.clear()
        return calls
