"""One owned partition number at work: records in, decisions by the desk, records out in the order that is promised.

Offsets have one writer, the transactional producer. It is fenced together with all else that a predecessor might still
do; and an offset committed in any other way could be overtaken by an older one that waits inside a transaction.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from consumers.cancels import CancelOf, nobody_cancelled
from consumers.gate.admission import AdmissionRules
from consumers.gate.bundles import fitted
from consumers.gate.collector import COLLECTING_PARTITION, Collector
from consumers.gate.deposits import Held
from consumers.gate.desk import Desk
from consumers.gate.errands import Errand, Errands
from consumers.gate.outgoing import Outgoing
from consumers.gate.progress import encode_progress
from consumers.gate.round import Fetch, Letter, Put, Round
from consumers.gate.sends import PlainSends
from consumers.gate.takeover import Taken
from consumers.renewing import RenewingProducer
from consumers.transactor import OutRecord, Position
from runtime.clock import BrokerClock
from runtime.logging import get_logger
from runtime.metrics import DEAD_LETTERS, RECORDS_IN, REQUESTS_ENDED
from runtime.storage import ObjectStore
from schemas.errors import BrokerUnavailable, Fenced
from schemas.names import Names

log = get_logger(__name__)

# So many delivered records of a topic may be undecided before its partition is paused; it resumes at half of that. So
# it does for what is kept in memory until object storage has it.
MAX_OPEN = 1_000
MAX_HELD_BYTES = 32 << 20

_MAX_ITEMS_A_ROUND = 256
_STOP_TIMEOUT_S = 5.0


class Shared(NamedTuple):
    """What all partitions of a gate share."""

    names: Names
    rules: AdmissionRules
    max_parked: int
    producer: RenewingProducer
    objects: ObjectStore
    clock: BrokerClock
    cancel_of: CancelOf = nobody_cancelled
    collector: Collector | None = None


class _Tick(NamedTuple):
    """A moment has passed."""


class _Delivered(NamedTuple):
    """A record of one of the input topics."""

    record: ConsumerRecord


_Item = _Delivered | Errand | _Tick


class Partition:
    """Owns one number of the gate's topics from takeover until `stop`, or until `failure` is set."""

    def __init__(self, number: int, taken: Taken, shared: Shared) -> None:
        self.number = number
        self.failure: BaseException | None = None
        self._shared = shared
        self._transactor, self._ledgers, book = taken
        self._desk = Desk(
            shared.names, number, book, shared.rules, max_parked=shared.max_parked, cancel_of=shared.cancel_of
        )
        self._outgoing = Outgoing(shared.names, number)
        self._items: asyncio.Queue[_Item | None] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sends = PlainSends(shared.producer, shared.clock)
        self._errands = Errands(shared.objects, done=self._items.put_nowait, failed=self._fail)
        self._loop: asyncio.Task[None] | None = None
        self._committed = {tp: self._progress(tp) for tp in self._ledgers}
        self._has_tick = False
        self._is_stopping = False

    @property
    def num_parked(self) -> int:
        """How many turns wait for their predecessor."""
        return self._desk.num_parked

    @property
    def next_offsets(self) -> dict[TopicPartition, int]:
        """Where delivery goes on, for each topic."""
        return {tp: ledger.next_offset for tp, ledger in self._ledgers.items()}

    def pressure(self, tp: TopicPartition) -> float:
        """How much of a topic is delivered and not done, as a share of what may be."""
        held = self._desk.num_held_bytes / MAX_HELD_BYTES if tp.topic != self._shared.names.results else 0.0
        return max(self._ledgers[tp].num_open / MAX_OPEN, held)

    def start(self) -> None:
        """Begin to decide what is offered."""
        self._loop = self._spawn(self._run())
        if self._shared.collector is not None and self.number == COLLECTING_PARTITION:
            self._errands.go_on(self._shared.collector.run())
        # Before any record: parked turns may have been cancelled while nobody owned them.
        self.tick()

    def offer(self, record: ConsumerRecord) -> None:
        """Take a delivered record; one that was delivered before is dropped."""
        tp = TopicPartition(record.topic, record.partition)
        if not self._ledgers[tp].open(record.offset):
            log.debug("redelivered_dropped", topic=record.topic, partition=record.partition, offset=record.offset)
            return
        RECORDS_IN.labels(record.topic).inc()
        self._items.put_nowait(_Delivered(record))

    def tick(self) -> None:
        """Say that time has passed: overdue turns end, and the progress of plain requests is committed."""
        if not self._has_tick:
            self._has_tick = True
            self._items.put_nowait(_Tick())

    async def prove_owned(self) -> None:
        """Commit the offsets as they are: that succeeds only if nobody has owned the partition meanwhile.

        Raises:
            Fenced: somebody has, and what is known here of sessions may be out of date.
        """
        await self._transactor.submit((), commits=list(self._ledgers))

    async def stop(self) -> None:
        """Finish what is decided, commit, let go. What is only delivered is left to the next owner."""
        self._is_stopping = True
        self._items.put_nowait(None)
        try:
            await asyncio.wait_for(self._finish(), _STOP_TIMEOUT_S)
        except (Fenced, BrokerUnavailable, TimeoutError) as error:
            # Nothing is lost: what was not committed is delivered to the next owner again.
            log.info("let_go_unfinished", partition=self.number, reason=repr(error))
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, self._errands.stop(), return_exceptions=True)
            await self._transactor.stop(timeout_s=_STOP_TIMEOUT_S)

    async def _finish(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self.failure is not None:
            log.info("let_go_failed", partition=self.number, reason=repr(self.failure))
        elif commits := self._with_progress():
            await self._transactor.submit((), commits=commits)

    async def _run(self) -> None:
        while (item := await self._items.get()) is not None and not self._is_stopping:
            out = Round()
            is_tick = self._decide(item, out)
            for _ in range(_MAX_ITEMS_A_ROUND):
                if self._items.empty() or (item := self._items.get_nowait()) is None:
                    break
                is_tick |= self._decide(item, out)
            await self._execute(out, commits_progress=is_tick)

    def _decide(self, item: _Item, out: Round) -> bool:
        """Decide one item; True if it was a tick."""
        now_ms = self._shared.clock.now_ms()
        match item:
            case Put():
                self._desk.object_put(item, now_ms, out)
            case Held():
                self._desk.deposit_put(item, out)
            case Fetch():
                self._desk.result_fetched(item, now_ms, out)
            case _Tick():
                self._has_tick = False
                self._desk.time_passed(now_ms, out)
            case _Delivered(record):
                self._desk.record(record, now_ms, out)
        return isinstance(item, _Tick)

    async def _execute(self, out: Round, *, commits_progress: bool) -> None:
        """Send what is plain and wait for it, then let one transaction have the rest.

        So little is open in front of what a transaction closes: the next owner must be told of what is done behind an
        open record, and beside an offset there is not much room for that.
        """
        sent = await self._sends.send([turn.record for turn in out.plain])
        self._errands.begin(out)
        letters = await asyncio.gather(*(self._letter(letter) for letter in out.letters))
        for turn, on_its_way in zip(out.plain, sent, strict=True):
            await self._sends.acknowledged(on_its_way)
            self._close(turn.position)
        for position in out.done:
            self._close(position)
        commits = self._with_progress() if commits_progress else []
        if out.writes or out.closes or letters or commits:
            self._spawn(self._write(out, letters, commits))

    async def _write(self, out: Round, letters: list[OutRecord], commits: list[TopicPartition]) -> None:
        await self._transactor.submit([*letters, *out.writes], out.closes, commits=commits)
        DEAD_LETTERS.labels("gate").inc(len(letters))
        for status in out.ended:
            REQUESTS_ENDED.labels(status).inc()

    async def _letter(self, letter: Letter) -> OutRecord:
        tenant = letter.decision.envelope.tenant
        shared = self._shared
        fitting = await fitted(letter.letter, tenant, shared.names, shared.objects, now_ms=shared.clock.now_ms())
        return self._outgoing.dead_letter(fitting, letter.decision)

    def _close(self, position: Position) -> None:
        self._ledgers[position.tp].close(position.offset)

    def _with_progress(self) -> list[TopicPartition]:
        """The topics with something done that was not committed yet."""
        progress = {tp: self._progress(tp) for tp in self._ledgers}
        found = [tp for tp in self._ledgers if progress[tp] != self._committed[tp]]
        self._committed = progress
        return found

    def _progress(self, tp: TopicPartition) -> tuple[int, str]:
        """What would be committed of a topic."""
        ledger = self._ledgers[tp]
        return ledger.committable, encode_progress(ledger.holes(), ledger.committable)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error
        # Nothing more is decided: it could not be written, and a plain turn would be one for nothing.
        if self._loop is not None:
            self._loop.cancel()
