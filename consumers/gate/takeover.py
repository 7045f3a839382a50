"""Taking one partition number over: fence the predecessor first, and only then read what it left behind."""

from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from consumers.gate.book import SessionBook, rebuild
from consumers.gate.progress import decode_progress, encode_progress
from consumers.transactor import Transactor
from runtime.kafka import close, make_consumer, make_producer, running
from runtime.ledger import Ledger
from runtime.metrics import TAKEOVERS
from runtime.reading import read_up_to
from schemas.errors import BrokerUnavailable
from schemas.names import LANES, Names
from schemas.settings import KafkaSettings

# The longest that another's open transaction can last, and as long again for the broker to notice.
_TRANSACTIONS = 2


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
        ledgers = {tp: await _ledger(consumer, tp) for tp in partitions}
        book = rebuild(await read_to_end(kafka, TopicPartition(names.sessions, number)))
    except BaseException as error:
        await close(producer)
        if isinstance(error, KafkaError):
            raise BrokerUnavailable(f"partition {number} cannot be taken over: {error!r}") from error
        raise
    TAKEOVERS.inc()
    transactor = Transactor(producer, group, ledgers, metadata=lambda tp, closing: _metadata(ledgers[tp], closing))
    transactor.start()
    return Taken(transactor, ledgers, book)


async def _ledger(consumer: Any, tp: TopicPartition) -> Ledger:
    """What is to be done in an input partition, as the predecessor has left it."""
    # (The consumer's own `committed` leaves the metadata out.)
    committed = (await consumer._coordinator.fetch_committed_offsets([tp])).get(tp)
    if committed is None or committed.offset < 0:
        return Ledger(int((await consumer.beginning_offsets([tp]))[tp]))
    return Ledger(committed.offset, decode_progress(committed.metadata, committed.offset))


def _metadata(ledger: Ledger, closing: set[int]) -> str:
    return encode_progress(ledger.holes(closing), ledger.would_commit(closing))


async def read_to_end(kafka: KafkaSettings, tp: TopicPartition) -> list[tuple[bytes | None, bytes | None]]:
    """All committed (key, value) pairs of a partition, up to its end at the time of the call.

    The end is that of all records: under read_committed it would lie before a transaction that is still open, and a
    committed record behind it would be missed. Such a transaction is waited for, as long as it may last.

    Raises:
        BrokerUnavailable: the end does not come.
    """
    end = await _uncommitted_end(kafka, tp)
    patience_s = _TRANSACTIONS * kafka.transaction_timeout_ms / 1000
    async with running(make_consumer(kafka)) as reader:
        reader.assign([tp])
        await reader.seek_to_beginning(tp)
        batches = [batch async for batch in read_up_to(reader, {tp: end}, patience_s=patience_s)]
    return [(record.key, record.value) for batch in batches for record in batch]


async def _uncommitted_end(kafka: KafkaSettings, tp: TopicPartition) -> int:
    async with running(make_consumer(kafka, isolation_level="read_uncommitted")) as reader:
        return int((await reader.end_offsets([tp]))[tp])
