"""Takes turn records as they come, starts their preparation, and puts each into the outbox of its partition."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from pipeline.claims import Claim, Partition
from pipeline.outbox import Outbox, Send
from pipeline.pack import Prepared
from pipeline.refuse import STAGE, refusal_of_unreadable
from pipeline.stage import Stage
from runtime.logging import bound, get_logger
from runtime.metrics import RECORDS_IN, RECORDS_REFUSED
from schemas.batches import Member
from schemas.codec import TURN
from schemas.errors import MalformedRecord
from schemas.names import Lane, Names, lane_of
from schemas.settings import Settings
from schemas.turns import Turn

log = get_logger(__name__)

_MS_PER_S = 1000


class InputRecord(NamedTuple):
    """A record of `turns` under the claim that it was taken under."""

    claim: Claim
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Brake(Protocol):
    """Stops and resumes the reading of one partition."""

    def hold(self, partition: Partition) -> None:
        """Read no more of it for now."""
        ...

    def release(self, partition: Partition) -> None:
        """Read on."""
        ...


class Intake:
    """All turns that are under way in this process, an outbox for each input partition."""

    def __init__(
        self, settings: Settings, stage: Stage, send: Send, *, brake: Brake, fail: Callable[[BaseException], None]
    ) -> None:
        self._names = Names(settings.topics.namespace, settings.topics.generation)
        self._models = settings.models
        self._max_tokens = settings.pipeline.max_tokens_per_batch
        self._max_age_s = settings.gate.max_age_s
        self._stage = stage
        self._send = send
        self._brake = brake
        self._fail = fail
        self._outboxes: dict[Partition, Outbox] = {}
        self._held: set[Partition] = set()

    @property
    def num_open(self) -> int:
        """Turns that were taken and whose outputs are not acknowledged."""
        return sum(outbox.num_open for outbox in self._outboxes.values())

    @property
    def detail(self) -> str:
        """What holds work up now, for people."""
        num_waiting = self._stage.num_waiting
        return f"object storage does not answer: {num_waiting} turns wait for it" if num_waiting else ""

    def has(self, partition: Partition, offset: int) -> bool:
        """Whether this record is one of them."""
        outbox = self._outboxes.get(partition)
        return outbox is not None and outbox.has(offset)

    def take(self, record: InputRecord) -> None:
        """Take a record; its output will follow those of the records before it. Never waits, never raises."""
        if record.claim.is_void:
            return
        partition = record.claim.partition
        RECORDS_IN.labels(partition.topic).inc()
        with bound(topic=partition.topic, partition=partition.partition, offset=record.offset):
            prepared = self._prepare(record, lane_of(partition.topic))
        if prepared is None:
            record.claim.close([record.offset])
            return
        outbox = self._outbox(record.claim)
        outbox.put(record.offset, len(record.value or b""), prepared)
        if outbox.is_full and partition not in self._held:
            self._held.add(partition)
            self._brake.hold(partition)

    async def drain(self) -> None:
        """Returns when all that was taken is acknowledged."""
        await asyncio.gather(*(outbox.drained() for outbox in self._outboxes.values()))

    def give_up(self, partitions: Iterable[Partition]) -> None:
        """Drop what is under way in these partitions: they are, or will be, read again."""
        for partition in partitions:
            outbox = self._outboxes.pop(partition, None)
            if outbox is not None:
                outbox.discard()
            self._release(partition)

    def give_up_all(self) -> None:
        """The same for all partitions."""
        self.give_up(list(self._outboxes))

    def _outbox(self, claim: Claim) -> Outbox:
        outbox = self._outboxes.get(claim.partition)
        if outbox is None or outbox.claim is not claim:
            self.give_up([claim.partition])
            outbox = self._outboxes[claim.partition] = Outbox(
                claim, self._send, max_tokens=self._max_tokens, eased=self._eased, fail=self._fail
            )
        return outbox

    def _prepare(self, record: InputRecord, lane: Lane) -> "asyncio.Future[Prepared] | None":
        """What will become of a record; None if it ends here, because not even its request is known."""
        try:
            turn = TURN.decode(record.value)
        except MalformedRecord as error:
            return self._prepare_unreadable(record, lane, error)
        # Counted from the broker's time on the record, since no other clock is the deadline's.
        seconds_left = (turn.envelope.deadline_ms - record.timestamp_ms) / _MS_PER_S
        return asyncio.create_task(self._member(turn, lane, record.offset, seconds_left))

    async def _member(self, turn: Turn, lane: Lane, offset: int, seconds_left: float) -> Prepared:
        return self._routed(await self._stage.member(turn, lane, seconds_left=seconds_left), lane, offset)

    def _prepare_unreadable(
        self, record: InputRecord, lane: Lane, error: MalformedRecord
    ) -> "asyncio.Future[Prepared] | None":
        """Only a fault of our own makes such a record: it is an error in the log, and its request still ends."""
        refused = refusal_of_unreadable(
            key=record.key,
            headers=record.headers,
            timestamp_ms=record.timestamp_ms,
            max_age_s=self._max_age_s,
            lane=lane,
            error=error,
        )
        request_id = refused.envelope.request_id if refused else None
        log.error("unreadable_turn", error=error.message, request=request_id)
        RECORDS_REFUSED.labels(STAGE, error.code).inc()
        if refused is None:
            return None
        prepared: asyncio.Future[Prepared] = asyncio.get_running_loop().create_future()
        prepared.set_result(self._routed(refused, lane, record.offset))
        return prepared

    def _routed(self, member: Member, lane: Lane, offset: int) -> Prepared:
        names = self._names
        topic = names.batches(member.model, lane) if member.model in self._models else names.refusals(lane)
        return Prepared(topic, offset, member)

    def _eased(self, outbox: Outbox) -> None:
        if outbox.is_half_empty:
            self._release(outbox.claim.partition)

    def _release(self, partition: Partition) -> None:
        if partition in self._held:
            self._held.discard(partition)
            self._brake.release(partition)
