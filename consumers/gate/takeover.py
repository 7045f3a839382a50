"""Taking one partition number over: fence the predecessor first, and only then read what it left behind."""

from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from consumers.gate.book import SessionBook, rebuild
from consumers.transactor import Transactor
from runtime.kafka import close, make_consumer, make_producer, running
from runtime.ledger import Ledger
from runtime.metrics import TAKEOVERS
from schemas.errors import BrokerUnavailable
from schemas.names import LANES, Names
from schemas.settings import KafkaSettings

_POLL_MS = 200


class Taken(NamedTuple):
    """What the owner of a partition number works with. The ledgers are those of its input partitions."""

    transactor: Transactor
    ledgers: dict[TopicPartition, Ledger]
    book: SessionBook


def input_topics(names: Names) -> list[str]:
    """The topics of which the gate owns the same partition number."""
    return [*(names.requests(lane) for lane in LANES), names.results]


async def take_over(number: int, *, kafka: KafkaSettings, names: Names, consumer: Any) -> Taken:
    """Become the owner of partition `number`; `consumer` is the member of the gate's group.

    Starting the producer fences the predecessor and completes its transaction. Read before that, the committed offsets
    and the sessions could be older than what it still writes (measured: 25 times of 25).

    Raises:
        BrokerUnavailable: it could not be done just now.
    """
    group = names.gate_group
    producer = make_producer(kafka, transactional_id=names.transactional_id(group, names.requests(), number))
    try:
        await producer.start()
        partitions = [TopicPartition(topic, number) for topic in input_topics(names)]
        ledgers = {tp: Ledger(await _first_offset(consumer, tp)) for tp in partitions}
        book = rebuild(await read_to_end(kafka, TopicPartition(names.sessions, number)))
    except BaseException as error:
        await close(producer)
        if isinstance(error, KafkaError):
            raise BrokerUnavailable(f"partition {number} cannot be taken over: {error!r}") from error
        raise
    TAKEOVERS.inc()
    transactor = Transactor(producer, group, ledgers)
    transactor.start()
    return Taken(transactor, ledgers, book)


async def _first_offset(consumer: Any, tp: TopicPartition) -> int:
    committed = await consumer.committed(tp)
    if committed is not None:
        return int(committed)
    return int((await consumer.beginning_offsets([tp]))[tp])


async def read_to_end(kafka: KafkaSettings, tp: TopicPartition) -> list[tuple[bytes | None, bytes | None]]:
    """All committed (key, value) pairs of a partition, up to its end at the time of the call.

    The end is that of all records: under read_committed it would lie before a transaction that is still open, and a
    committed record behind it would be missed. Such a transaction is waited for.
    """
    end = await _uncommitted_end(kafka, tp)
    found = []
    async with running(make_consumer(kafka)) as reader:
        reader.assign([tp])
        await reader.seek_to_beginning(tp)
        while await reader.position(tp) < end:
            batches = await reader.getmany(tp, timeout_ms=_POLL_MS)
            found += [(record.key, record.value) for record in batches.get(tp, [])]
    return found


async def _uncommitted_end(kafka: KafkaSettings, tp: TopicPartition) -> int:
    async with running(make_consumer(kafka, isolation_level="read_uncommitted")) as reader:
        return int((await reader.end_offsets([tp]))[tp])
