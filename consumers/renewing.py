"""A plain idempotent producer that is made anew after a failed send.

A send that failed leaves a hole in the producer's sequence numbers, after which the broker refuses all others to that
partition.
"""

import asyncio

from aiokafka import AIOKafkaProducer

from runtime.broker import broker_errors
from runtime.kafka import close, make_producer
from runtime.logging import get_logger
from schemas.settings import KafkaSettings

log = get_logger(__name__)


class RenewingProducer:
    """Shared by all partitions of a process. Who sees a send fail gives that producer up; the next one gets another."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._producer: AIOKafkaProducer | None = None
        self._renewing = asyncio.Lock()
        self._broken: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect."""
        await self.current()

    async def stop(self) -> None:
        """Flush and let go."""
        if self._producer is not None:
            await close(self._producer)
        await asyncio.gather(*self._broken, return_exceptions=True)

    async def current(self) -> AIOKafkaProducer:
        """The producer to send with.

        Raises:
            BrokerUnavailable: there is none, and the broker does not answer.
            SettingsError: the broker refuses who we are.
        """
        async with self._renewing:
            if self._producer is None:
                self._producer = await self._started()
            return self._producer

    def give_up(self, broken: AIOKafkaProducer) -> None:
        """A send by this producer failed."""
        if self._producer is broken:
            log.warning("producer_renewed")
            self._producer = None
            # What it still holds for other partitions may succeed, and that can take as long as the broker is away.
            stopping = asyncio.create_task(close(broken))
            self._broken.add(stopping)
            stopping.add_done_callback(self._broken.discard)

    async def _started(self) -> AIOKafkaProducer:
        producer = make_producer(self._kafka)
        try:
            with broker_errors(self._kafka):
                await producer.start()
        except BaseException:
            await close(producer)
            raise
        return producer
