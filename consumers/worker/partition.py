"""One input partition that is ours: takes its records in, has them served, writes how they end, hands them over."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from aiokafka import ConsumerRecord, TopicPartition

from consumers.journal import RequestIdentity, identity_of
from consumers.transactor import OutRecord, Position, Transactor
from consumers.worker.deltas import DeltaLane
from consumers.worker.inputs import OpenInput, OpenInputs
from consumers.worker.intake import take
from consumers.worker.known import KnownRequests
from consumers.worker.meter import observe_end
from consumers.worker.ownership import Claim, Tenure
from consumers.worker.request import RunningRequest
from consumers.worker.serving import RequestServer
from consumers.worker.takeover import Checkpoint, Duplicate, Finished, decide, encode_checkpoint
from runtime.ledger import Ledger
from runtime.logging import bound, get_logger
from runtime.metrics import DEAD_LETTERS, RECORDS_IN, RECORDS_REFUSED
from schemas.batches import Member
from schemas.errors import HeadraceError, MalformedRecord

log = get_logger(__name__)

# While sequences run, so often at least something is committed: a worker that was fenced notices.
COMMIT_INTERVAL_S = 1.0

# How long each step of letting go may take; there are four that speak with the broker.
RELEASE_STEP_S = 5.0


class OwnedPartition:
    """The owner of one source, from its takeover to its release.

    `on_change` is called when a request has ended and when the partition has failed.
    """

    def __init__(self, claim: Claim, tenure: Tenure, on_change: Callable[[TopicPartition], None]) -> None:
        context, tp, writer = claim.context, claim.tp, claim.writer
        self.tp = tp
        self.epoch = tenure.epoch
        self.failure: Exception | None = None
        self._context = context
        self._writer = writer
        self._on_change = on_change
        self._ledger = Ledger(tenure.offset)
        self._journal = tenure.journal
        self._inputs = OpenInputs(inherited_low=tenure.inherited_low, inherited_until=tenure.inherited_until)
        self._known = KnownRequests()
        self._tasks: set[asyncio.Task[None]] = set()
        self._transactor = Transactor(tenure.producer, claim.group, {tp: self._ledger}, metadata=self._checkpoint)
        self._lane = DeltaLane(
            context.plain.send,
            on_failure=self._fail,
        )
        self._server = RequestServer(context, self._lane, writer)
        self._committed_at_s = time.monotonic()
        self._beat: asyncio.Task[None] | None = None

    @property
    def num_open(self) -> int:
        """How many requests are under way."""
        return len(self._tasks)

    @property
    def next_offset(self) -> int:
        """Where to poll next."""
        return self._ledger.next_offset

    def start(self) -> None:
        """Begin to work."""
        self._context.control.listen(self._on_cancel)
        self._transactor.start()
        self._lane.start(self.epoch + 1)
        self._beat = asyncio.create_task(self._keep_committing())

    def accept(self, record: ConsumerRecord) -> None:
        """Take one polled record in. Never waits; one that was delivered before is dropped."""
        if not self._ledger.open(record.offset):
            log.debug("redelivered_record_dropped", source=self._writer.source, offset=record.offset)
            return
        RECORDS_IN.labels(topic=record.topic).inc()
        taken, low = take(record, self._context.settings), self._lane.end_offset
        opened = self._inputs.open(record.offset, num_members=taken.num_endings, tokens_low=low)
        if taken.error is not None:
            self._spawn(self._bury(record, taken.error, opened))
        elif not taken.members:
            self._spawn(self._write([], opened))
        for member in taken.members:
            self._admit(member, opened)

    async def is_still_ours(self) -> bool:
        """Commit the offset as it stands: that nobody has taken the partition over is proven, or it fails."""
        try:
            await self._commit([], [])
        except Exception as error:  # noqa: BLE001 (whatever it is, nothing is proven)
            self._fail(error)
        return self.failure is None

    async def drained(self) -> None:
        """Return when no request is under way; with admission stopped, that stays so."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def release(self) -> None:
        """Let go in good order: stop what runs, say so in the journal, write what waits to be written.

        No step waits long for a broker that does not answer: the next owner fences us anyway.
        """
        self._context.control.unlisten(self._on_cancel)
        tasks = [*self._tasks, *([self._beat] if self._beat else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._lane.stop(timeout_s=RELEASE_STEP_S)
        await self._say_released()
        await self._transactor.stop(timeout_s=RELEASE_STEP_S)
        log.info("partition_released", source=self._writer.source, epoch=self.epoch, failed=self.failure is not None)

    def _admit(self, member: Member, opened: OpenInput) -> None:
        identity = identity_of(member.envelope)
        progress = self._journal.get(identity)
        decision = decide(self._writer.source, opened.offset, progress, self._known.find(identity))
        if isinstance(decision, Duplicate):
            self._spawn(self._write([self._writer.duplicate(member, decision)], opened))
            return
        if progress is not None:
            opened.tokens_low = min(opened.tokens_low, progress.first_offset)
        if isinstance(decision, Finished):
            self._spawn(self._write([], opened))
            return
        request = RunningRequest(
            member,
            source=self._writer.source,
            epoch=self.epoch,
            input_offset=opened.offset,
            progress=self._journal.pop(identity, None),
        )
        self._known.begin(request)
        self._cancel_if_asked(request)
        self._spawn(self._serve(request, opened))

    def _on_cancel(self, identity: RequestIdentity) -> None:
        if (request := self._known.running_one(identity)) is not None:
            self._cancel_if_asked(request)

    def _cancel_if_asked(self, request: RunningRequest) -> None:
        error = self._context.control.book.find(request.envelope)
        if error is not None:
            log.info("cancelling", source=self._writer.source, request=request.envelope.request_id)
            request.cancel(error.body)

    async def _serve(self, request: RunningRequest, opened: OpenInput) -> None:
        envelope = request.envelope
        where = {"topic": self.tp.topic, "partition": self.tp.partition, "offset": opened.offset}
        with bound(request=envelope.request_id, session=envelope.session, **where):
            ending = await self._server.serve(request)
            now_ms = self._context.clock.now_ms()
            terminal = self._writer.result(request, ending, now_ms)
            terminal = await self._context.claims.fitting(terminal, now_ms=now_ms)
            offsets = await self._write(self._writer.end(request, terminal), opened)
            self._known.end(request, result_offset=offsets[0], now_ms=int(self._context.clock.now_ms()))
            observe_end(request, terminal)
            log.info("request_ended", status=terminal.status, completion_tokens=terminal.usage.completion_tokens)

    async def _bury(self, record: ConsumerRecord, error: MalformedRecord, opened: OpenInput) -> None:
        log.warning("record_malformed", source=self._writer.source, offset=record.offset, error=error.message)
        await self._write([self._writer.dead_letter(record, error)], opened)
        DEAD_LETTERS.labels(stage="worker").inc()
        RECORDS_REFUSED.labels(stage="worker", code=error.code).inc()

    async def _write(self, records: list[OutRecord], opened: OpenInput) -> list[int]:
        """Write how one member ended; the last one of its record closes it in the same transaction."""
        opened.num_open -= 1
        return await self._commit(records, [] if opened.num_open else [Position(self.tp, opened.offset)])

    async def _commit(self, records: list[OutRecord], closes: list[Position]) -> list[int]:
        offsets = await self._transactor.submit(records, closes, commits=[self.tp])
        self._committed_at_s = time.monotonic()
        return offsets

    async def _keep_committing(self) -> None:
        try:
            while True:
                await asyncio.sleep(COMMIT_INTERVAL_S)
                if self._tasks and time.monotonic() - self._committed_at_s >= COMMIT_INTERVAL_S:
                    await self._commit([], [])
        except Exception as error:  # noqa: BLE001 (a partition that cannot commit has failed)
            self._fail(error)

    def _checkpoint(self, *_: object) -> str:
        low = self._inputs.tokens_low(
            committed=self._ledger.committable,
            next_offset=self._ledger.next_offset,
            end_offset=self._lane.end_offset,
        )
        return encode_checkpoint(Checkpoint(epoch=self.epoch, tokens_low=low))

    async def _say_released(self) -> None:
        admitted = [request for request in self._known.running if request.has_admission_mark]
        waiting = [self._writer.released(request) for request in admitted]
        try:
            async with asyncio.timeout(RELEASE_STEP_S):
                while waiting:
                    ack = await self._context.plain.send(waiting)
                    waiting = waiting[ack.num_sent :]
        except (HeadraceError, TimeoutError) as error:
            # Without the marks the attempts look like crashes: a pity, no fault.
            log.warning("released_marks_not_written", source=self._writer.source, error=repr(error))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._reap)

    def _reap(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)
        self._on_change(self.tp)

    def _fail(self, error: BaseException) -> None:
        if self.failure is not None:
            return
        if not isinstance(error, Exception):
            raise error
        if not isinstance(error, HeadraceError):
            log.error("partition_failed", source=self._writer.source, exc_info=error)
        self.failure = error
        self._on_change(self.tp)
