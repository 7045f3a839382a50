"""The plain sends of a worker: a batch of records is sent whole or not at all."""

from collections.abc import Sequence

from aiokafka.errors import KafkaError

from consumers.renewing import RenewingProducer
from consumers.transactor import OutRecord
from consumers.worker.deltas import Ack
from runtime.clock import BrokerClock
from schemas.errors import BrokerUnavailable
from schemas.settings import KafkaSettings


class PlainProducer:
    """Shared by all partitions of a worker, so that one request to the broker carries what all of them say."""

    def __init__(self, kafka: KafkaSettings, clock: BrokerClock) -> None:
        self._clock = clock
        self._producer = RenewingProducer(kafka)

    async def start(self) -> None:
        """Connect."""
        await self._producer.start()

    async def stop(self) -> None:
        """Flush and let go."""
        await self._producer.stop()

    async def send(self, records: Sequence[OutRecord]) -> Ack:
        """Send as many of the records as fit a batch, all of them to the partition of the first.

        Raises:
            BrokerUnavailable: the send failed; the records may or may not be in the log.
            SettingsError: the broker refuses who we are.
        """
        producer = await self._producer.current()
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
            self._producer.give_up(producer)
            raise BrokerUnavailable(f"a send to {first.topic}-{first.partition} failed: {error!r}") from error
        self._clock.hear(acked.timestamp)
        return Ack(num_sent, acked.offset)


def _appended(builder: object, record: OutRecord) -> bool:
    fits = builder.append(  # type: ignore[attr-defined] # aiokafka has no types
        timestamp=None, key=record.key, value=record.value, headers=list(record.headers)
    )
    return fits is not None
