"""Reads `control`, all of it and without a group: whoever may end a request must hear of every cancel.

A cancel may stand in any partition, and must be known to whoever polls the request next, also to a later owner: so a
role reads back first, and only then takes requests in.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import ConsumerRecord

from consumers.cancels import CancelBook
from consumers.journal import RequestIdentity
from runtime.broker import broker_errors
from runtime.clock import BrokerClock
from runtime.kafka import close, make_consumer
from runtime.logging import get_logger
from runtime.reading import read_up_to
from runtime.topics import find_extents, partition_counts
from schemas.codec import CONTROL
from schemas.errors import MalformedRecord
from schemas.names import Names
from schemas.settings import KafkaSettings

log = get_logger(__name__)

# Called with who was cancelled, on the event loop.
Listener = Callable[[RequestIdentity], None]

_MS_PER_S = 1000

# At the start no broker may have told its time yet: what a clock that is wrong by less would miss is read as well.
_CLOCK_MARGIN_S = 3600.0
_POLL_MS = 500
# Reading back goes on for as long as records come.
_STALL_S = 30.0
_RETRY_S = 1.0


class ControlReader:
    """Keeps `book` up to date, and tells those who listen of each cancel as it comes.

    What is no cancel is passed over with a warning: nobody can stop a role by what is written here. `following` ends
    only with a fault of ours, which must end the process.
    """

    def __init__(self, kafka: KafkaSettings, names: Names, *, max_age_s: float, clock: BrokerClock) -> None:
        self.book = CancelBook(max_age_s)
        self._kafka = kafka
        self._topic = names.control
        self._max_age_s = max_age_s
        self._clock = clock
        self._listeners: list[Listener] = []
        self._consumer: Any = None
        self._following: asyncio.Task[None] | None = None

    @property
    def following(self) -> "asyncio.Task[None]":
        """The work that goes on between `start` and `stop`."""
        if self._following is None:
            raise RuntimeError("following begins with start()")
        return self._following

    def listen(self, listener: Listener) -> None:
        """Tell `listener` of every cancel from now on."""
        self._listeners.append(listener)

    def unlisten(self, listener: Listener) -> None:
        """Tell it no more."""
        self._listeners.remove(listener)

    async def start(self) -> None:
        """Read what was cancelled before, then go on: what could be read when this was called is known afterwards.

        Raises:
            BrokerUnavailable: the topic cannot be read.
        """
        with broker_errors(self._kafka):
            counts = await partition_counts(self._kafka, [self._topic])
            self._consumer = make_consumer(self._kafka)
            await self._consumer.start()
            partitions = [TopicPartition(self._topic, number) for number in range(counts.get(self._topic, 0))]
            await self._read_back(partitions)
        log.info("control_read", num_cancels=len(self.book))
        self._following = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Let go of the broker; safe also where `start` has failed."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        if self._consumer is not None:
            await close(self._consumer)

    async def _follow(self) -> None:
        while True:
            try:
                await self._poll()
            except KafkaError as error:
                # The broker may be away, as it may be for the rest of the role: cancels come late then, but come.
                log.warning("control_unreadable", error=repr(error))
                await asyncio.sleep(_RETRY_S)

    async def _read_back(self, partitions: list[TopicPartition]) -> None:
        # Ends of committed records: what stands behind somebody's open transaction is heard when that has ended.
        extents = await find_extents(self._consumer, partitions)
        since_ms = int(self._clock.now_ms() - (self._max_age_s + _CLOCK_MARGIN_S) * _MS_PER_S)
        found = await self._consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
        for tp in partitions:
            self._consumer.seek(tp, found[tp].offset if found[tp] is not None else extents[tp].end)
        self._consumer.resume(*partitions)
        ends = {tp: extent.end for tp, extent in extents.items()}
        async for records in read_up_to(self._consumer, ends, patience_s=_STALL_S):
            self._take(records)
        for tp, end in ends.items():
            self._consumer.seek(tp, end)
        self._consumer.resume(*partitions)

    async def _poll(self) -> None:
        """Take what is there, or wait a moment for it."""
        batches = await self._consumer.getmany(timeout_ms=_POLL_MS)
        for records in batches.values():
            self._take(records)

    def _take(self, records: "Iterable[ConsumerRecord[bytes, bytes]]") -> None:
        for record in records:
            try:
                cancel = CONTROL.decode(record.value)
            except MalformedRecord as error:
                where = {"partition": record.partition, "offset": record.offset}
                log.warning("control_record_skipped", **where, error=error.message)
                continue
            identity = self.book.note(cancel, record.timestamp)
            log.debug("cancel_read", request=identity.request_id)
            for listener in tuple(self._listeners):
                listener(identity)
