"""Which partition numbers this gate owns: taken over, kept, let go after each rebalance, outside aiokafka's callback.

aiokafka only logs what its callback raises, and records flow all the same: so the callback does no more than pause and
signal, and nothing that is delivered counts until all of it is settled.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.structs import ConsumerRecord

from consumers.gate.partition import Partition, Shared
from consumers.gate.takeover import input_topics, take_over
from consumers.journal import RequestIdentity
from runtime.kafka import partition_for
from runtime.logging import get_logger
from schemas.errors import BrokerUnavailable, Fenced
from schemas.settings import KafkaSettings

log = get_logger(__name__)

# Two processes that share a transactional id fence each other for ever; one of them must give up.
_FENCED_WINDOW_S = 30.0
_MAX_FENCED = 2
# Who was away for too long is fenced before it learns that it has left the group: it waits for two heartbeats.
_HEARTBEATS_A_SESSION = 5
# A broker that restarts breaks transactions that are under way. What fails for longer than this ends the process.
_PATIENCE_S = 60.0
_QUIET_S = 30.0
# What was paused because it is full is read on when so little of that is left.
_EASED = 0.5
_RETRY_S = 1.0


class Ownership(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka has no types
    """The owned partitions of one member of the gate's group."""

    def __init__(self, consumer: AIOKafkaConsumer, kafka: KafkaSettings, shared: Shared) -> None:
        self._consumer = consumer
        self._kafka = kafka
        self._shared = shared
        self._topics = input_topics(shared.names)
        self._owned: dict[int, Partition] = {}
        # Numbers whose records count: settled since the last rebalance.
        self._live: set[int] = set()
        self._full: set[TopicPartition] = set()
        self._generation = 0
        self._is_rebalancing = False
        self._settle_at_s: float | None = None
        self._settling: asyncio.Task[None] | None = None
        self._fenced_at_s: deque[float] = deque(maxlen=_MAX_FENCED)
        self._trouble_since_s = self._trouble_at_s = -_QUIET_S

    @property
    def is_settled(self) -> bool:
        """Whether every assigned partition is owned and at work."""
        is_done = self._settle_at_s is None and self._settling is None
        return self._generation > 0 and is_done and not self._is_rebalancing

    @property
    def numbers(self) -> list[int]:
        """The partition numbers at work."""
        return sorted(self._live)

    @property
    def num_parked(self) -> int:
        """How many turns wait for their predecessor, in all owned partitions."""
        return sum(partition.num_parked for partition in self._owned.values())

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Called by aiokafka before it rejoins: what is delivered from now on does not count."""
        self._is_rebalancing = True
        self._unsettle()

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Called by aiokafka with all that is assigned now; an eager rebalance has undone every pause."""
        self._consumer.pause(*assigned)
        self._is_rebalancing = False
        self._unsettle()
        self._settle_at_s = time.monotonic()

    def advance(self) -> None:
        """Look after the partitions: to be called again and again, never waits.

        Raises:
            HeadraceError: a partition or a takeover failed; the process must end.
        """
        for partition in self._owned.values():
            if partition.failure is not None:
                self._on_failure(partition, partition.failure)
        if self._settling is not None and self._settling.done():
            settled, self._settling = self._settling, None
            try:
                settled.result()
            except BrokerUnavailable as error:
                self._on_trouble(error)
        is_due = self._settle_at_s is not None and self._settle_at_s <= time.monotonic()
        if is_due and self._settling is None:
            self._settle_at_s = None
            self._settling = asyncio.create_task(self._settle())

    def deliver(self, records: Iterable[ConsumerRecord]) -> None:
        """Hand records to the partitions that own them. Those of a partition that is not settled come again."""
        for record in records:
            if record.partition in self._live:
                self._owned[record.partition].offer(record)

    def throttle(self) -> None:
        """Pause what has too much undone, resume what has caught up."""
        for number in self._live:
            for topic in self._topics:
                tp = TopicPartition(topic, number)
                pressure = self._owned[number].pressure(tp)
                if pressure >= 1 and tp not in self._full:
                    self._consumer.pause(tp)
                    self._full.add(tp)
                elif pressure <= _EASED and tp in self._full:
                    self._consumer.resume(tp)
                    self._full.discard(tp)

    def tick(self) -> None:
        """Tell every partition that time has passed."""
        for number in self._live:
            self._owned[number].tick()

    def on_cancel(self, identity: RequestIdentity) -> None:
        """Let a cancelled turn that is parked here end at once; elsewhere, or not settled yet, it is seen soon."""
        number = partition_for(identity.key.encode(), self._shared.rules.num_partitions)
        if number in self._live:
            self._owned[number].tick()

    async def stop(self) -> None:
        """Finish what is decided and let every partition go."""
        if self._settling is not None:
            self._settling.cancel()
            await asyncio.gather(self._settling, return_exceptions=True)
        self._live.clear()
        drops = [self._drop(number) for number in list(self._owned)]
        failures = [one for one in await asyncio.gather(*drops, return_exceptions=True) if one is not None]
        if failures:
            raise failures[0]

    def _unsettle(self) -> None:
        self._generation += 1
        self._live.clear()
        self._full.clear()

    def _on_failure(self, partition: Partition, failure: BaseException) -> None:
        if not isinstance(failure, Fenced | BrokerUnavailable):
            raise failure
        if partition.number not in self._live:
            # Known already; or a rebalance is under way, and settles it.
            return
        self._live.discard(partition.number)
        self._consumer.pause(*partition.next_offsets)
        if isinstance(failure, Fenced):
            self._on_fenced(failure)
        else:
            self._on_trouble(failure)

    def _on_fenced(self, failure: Fenced) -> None:
        now_s = time.monotonic()
        self._fenced_at_s.append(now_s)
        if len(self._fenced_at_s) == _MAX_FENCED and now_s - self._fenced_at_s[0] < _FENCED_WINDOW_S:
            raise failure
        log.warning("fenced", error=failure.message)
        self._settle_at_s = now_s + self._kafka.session_timeout_ms / 1000 / _HEARTBEATS_A_SESSION

    def _on_trouble(self, failure: BrokerUnavailable) -> None:
        """Take over anew in a moment, unless that has not helped for too long."""
        now_s = time.monotonic()
        if now_s - self._trouble_at_s > _QUIET_S:
            self._trouble_since_s = now_s
        self._trouble_at_s = now_s
        if now_s - self._trouble_since_s > _PATIENCE_S:
            raise failure
        log.warning("broker_trouble", error=failure.message)
        self._settle_at_s = now_s + _RETRY_S

    async def _settle(self) -> None:
        generation = self._generation
        assigned = {tp.partition for tp in self._consumer.assignment()}
        await asyncio.gather(*(self._drop(number) for number in list(self._owned) if number not in assigned))
        await _all(self._own(number) for number in assigned)
        if generation != self._generation:
            # Rebalanced meanwhile: that one settles.
            return
        for number in assigned - self._live:
            self._go_live(self._owned[number])
        log.info("settled", partitions=self.numbers)

    async def _own(self, number: int) -> None:
        """Be the owner of a number, whether it was owned before or not."""
        partition = self._owned.get(number)
        if partition is not None and await self._is_still_owned(partition):
            return
        await self._drop(number)
        taken = await take_over(number, kafka=self._kafka, names=self._shared.names, consumer=self._consumer)
        self._owned[number] = Partition(number, taken, self._shared)
        self._owned[number].start()

    async def _is_still_owned(self, partition: Partition) -> bool:
        """Whether nobody was between: the partition may have gone to another gate and come back."""
        if partition.failure is not None:
            return False
        try:
            await partition.prove_owned()
        except (Fenced, BrokerUnavailable) as error:
            log.info("kept_but_lost", partition=partition.number, code=error.code)
            return False
        return True

    def _go_live(self, partition: Partition) -> None:
        """Let records in, from behind what was delivered before: aiokafka's own position may be any other."""
        for tp, offset in partition.next_offsets.items():
            self._consumer.seek(tp, offset)
            self._consumer.resume(tp)
        self._live.add(partition.number)

    async def _drop(self, number: int) -> None:
        self._live.discard(number)
        partition = self._owned.pop(number, None)
        if partition is not None:
            await partition.stop()


async def _all(works: Iterable[Any]) -> None:
    """Do all at once; if one fails the others are ended too, before the failure is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
