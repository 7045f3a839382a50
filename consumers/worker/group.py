"""One consumer group of a worker: polls always, pauses what is full, hands what is polled to the owned partitions."""

import asyncio
import time
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

from consumers.worker.context import WorkerContext
from consumers.worker.keeper import PartitionKeeper
from consumers.worker.pressure import full_partitions
from runtime.kafka import make_consumer
from runtime.logging import get_logger

log = get_logger(__name__)

_POLL_MS = 100


class PartitionGroup(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka has no types
    """Polls the topics of one group. Generation is never awaited here, however long it takes.

    aiokafka only logs what its callbacks raise, so they pause and signal; the work is done by the keeper.
    """

    def __init__(self, context: WorkerContext, group: str, topics: Iterable[str]) -> None:
        worker = context.settings.worker
        self.polled_at_s = time.monotonic()
        self.has_joined = False
        self.is_rebalancing = True
        self.keeper = PartitionKeeper(context, group, on_change=self._balance)
        self._group = group
        self._max_in_flight = worker.max_in_flight
        self._topics = sorted(topics)
        self._is_admitting = True
        self._consumer: AIOKafkaConsumer = make_consumer(
            context.settings.kafka, group=group, instance_id=worker.instance_id
        )

    async def start(self) -> None:
        """Join the group."""
        self._consumer.subscribe(self._topics, listener=self)
        await self._consumer.start()

    async def run(self) -> None:
        """Poll until cancelled. Raises what ends the process: a group error, or a partition that cannot be kept."""
        polling = asyncio.create_task(self._poll())
        try:
            await asyncio.wait({polling, self.keeper.fatal}, return_when=asyncio.FIRST_COMPLETED)
            for done in (polling, self.keeper.fatal):
                if done.done():
                    done.result()
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)

    def stop_admission(self) -> None:
        """Take no more records in; what runs goes on, and the partitions stay ours."""
        self._is_admitting = False
        self.keeper.stop_taking()
        self._balance()

    async def leave(self) -> None:
        """Hand all partitions over and leave the group (a static member keeps its place for its next start)."""
        await self.keeper.release_all()
        await self._consumer.stop()

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """A rebalance begins. Which partitions stay is known at its end."""
        self.is_rebalancing = True
        self.keeper.suspend()

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """A rebalance has ended. A partition that stayed has lost its pause and its position with it."""
        partitions = set(assigned)
        if partitions:
            self._consumer.pause(*partitions)
        self.has_joined = True
        self.is_rebalancing = False
        self.polled_at_s = time.monotonic()
        log.info("assigned", group=self._group, num_partitions=len(partitions))
        self.keeper.assign(partitions)

    async def _poll(self) -> None:
        while True:
            free = max(1, self._max_in_flight - sum(self.keeper.num_open.values()))
            polled = await self._consumer.getmany(timeout_ms=_POLL_MS, max_records=free)
            self.polled_at_s = time.monotonic()
            for tp, records in polled.items():
                # Of a partition that is not settled yet, nothing is taken: it is sought when it is.
                if (partition := self.keeper.settled(tp)) is not None:
                    for record in records:
                        partition.accept(record)
            self._balance()

    def _balance(self) -> None:
        """Bring pauses and positions in line with what is settled, full or neither."""
        held, paused = self._held(), self._consumer.paused()
        for tp in self._consumer.assignment():
            partition = self.keeper.settled(tp)
            if partition is None or tp in held:
                self._consumer.pause(tp)
            elif tp in paused:
                # What was fetched before is dropped by the pause, and the position may be the group's: ours counts.
                self._consumer.seek(tp, partition.next_offset)
                self._consumer.resume(tp)

    def _held(self) -> set[TopicPartition]:
        num_open = self.keeper.num_open
        return full_partitions(num_open, self._max_in_flight) if self._is_admitting else set(num_open)
