"""Plain records of one partition: turns that need no transaction. All are on their way before any is waited for."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from consumers.renewing import RenewingProducer
from consumers.transactor import OutRecord
from runtime.clock import BrokerClock
from schemas.errors import BrokerUnavailable


class Sent(NamedTuple):
    """A record that is on its way."""

    producer: AIOKafkaProducer
    ack: "asyncio.Future[Any]"


class PlainSends:
    """Sends over the producer that all partitions share; hears the broker's time in what it acknowledges.

    A producer that fails is given up: the next send has a new one.
    """

    def __init__(self, producer: RenewingProducer, clock: BrokerClock) -> None:
        self._producer = producer
        self._clock = clock

    async def send(self, records: Sequence[OutRecord]) -> list[Sent]:
        """Hand records over, all to one producer: those of one partition arrive in this order.

        Raises:
            BrokerUnavailable: one cannot be sent.
        """
        if not records:
            return []
        producer = await self._producer.current()
        return [await self._sent(producer, record) for record in records]

    async def acknowledged(self, sent: Sent) -> None:
        """Returns when the broker has the record.

        Raises:
            BrokerUnavailable: it may or may not have it.
        """
        try:
            self._clock.hear((await sent.ack).timestamp)
        except KafkaError as error:
            self._producer.give_up(sent.producer)
            raise BrokerUnavailable(f"a turn was not acknowledged: {error!r}") from error

    async def _sent(self, producer: AIOKafkaProducer, record: OutRecord) -> Sent:
        try:
            ack = await producer.send(
                record.topic, record.value, key=record.key, partition=record.partition, headers=list(record.headers)
            )
        except KafkaError as error:
            self._producer.give_up(producer)
            raise BrokerUnavailable(f"a turn cannot be written to {record.topic}: {error!r}") from error
        return Sent(producer, ack)
