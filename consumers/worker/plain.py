"""The one plain idempotent producer of a worker: it sends a batch of records whole or not at all."""

import asyncio
from collections.abc import Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from consumers.transactor import OutRecord
from consumers.worker.clock import BrokerClock
from consumers.worker.deltas import Ack
from runtime.broker import broker_errors
from runtime.kafka import make_producer
from runtime.logging import get_logger
from schemas.errors import BrokerUnavailable
from schemas.settings import KafkaSettings

log = get_logger(__name__)


class PlainProducer:
    """Shared by all partitions of a worker, so that one request to the broker carries what all of them say.

    A send that failed leaves a hole in the producer's sequence numbers, after which the broker refuses all others to
    that partition: the producer is made anew.
    """

    def __init__(self, kafka: KafkaSettings, clock: BrokerClock) -> None:
        self._kafka = kafka
        self._clock = clock
        self._producer: AIOKafkaProducer | None = None
        self._renewing = asyncio.Lock()
        self._broken: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect."""
        self._producer = await self._started()

    async def stop(self) -> None:
        """Flush and let go."""
        if self._producer is not None:
            await self._producer.stop()
        await asyncio.gather(*self._broken, return_exceptions=True)

    async def send(self, records: Sequence[OutRecord]) -> Ack:
        """Send as many of the records as fit a batch, all of them to the partition of the first.

        Raises:
            BrokerUnavailable: the send failed; the records may or may not be in the log.
            SettingsError: the broker refuses who we are.
        """
        producer = await self._current()
        first = records[0]
        builder = producer.create_batch()
        num_sent = 0
        for record in records:
            if not _appended(builder, record):
                break
            num_sent += 1
        builder.close()
        try:
            acked = await (await producer.send_batch(builder, first.topic, partition=first.partition))
        except KafkaError as error:
            self._give_up(producer)
            raise BrokerUnavailable(f"a send to {first.topic}-{first.partition} failed: {error!r}") from error
        self._clock.hear(acked.timestamp)
        return Ack(num_sent, acked.offset)

    async def _current(self) -> AIOKafkaProducer:
        async with self._renewing:
            if self._producer is None:
                self._producer = await self._started()
            return self._producer

    def _give_up(self, broken: AIOKafkaProducer) -> None:
        if self._producer is broken:
            log.warning("producer_renewed")
            self._producer = None
            self._retire(broken)

    def _retire(self, broken: AIOKafkaProducer) -> None:
        # What it still holds for other partitions may succeed, and that can take as long as the broker is away.
        stopping = asyncio.create_task(broken.stop())
        self._broken.add(stopping)
        stopping.add_done_callback(self._broken.discard)

    async def _started(self) -> AIOKafkaProducer:
        producer = make_producer(self._kafka)
        try:
            with broker_errors(self._kafka):
                await producer.start()
        except BaseException:
            await producer.stop()
            raise
        return producer


def _appended(builder: object, record: OutRecord) -> bool:
    fits = builder.append(  # type: ignore[attr-defined] # aiokafka has no types
        timestamp=None, key=record.key, value=record.value, headers=list(record.headers)
    )
    return fits is not None
