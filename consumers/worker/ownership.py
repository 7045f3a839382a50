"""Takes an input partition over: fence, then read; mark, then read back. Every step answers a measured trap."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from consumers.journal import Progress, RequestIdentity, rebuild
from consumers.transactor import close_producer
from consumers.worker.context import WorkerContext
from consumers.worker.readback import CommittedPosition, committed_position, read_back
from consumers.worker.records import RecordWriter
from consumers.worker.takeover import Checkpoint, encode_checkpoint
from runtime.kafka import make_consumer, make_producer
from schemas.errors import BrokerUnavailable, Fenced

_MS_PER_S = 1000


class Claim(NamedTuple):
    """An input partition that the group has given to this worker."""

    context: WorkerContext
    group: str
    tp: TopicPartition
    writer: RecordWriter


class Tenure(NamedTuple):
    """A partition that is ours: from where, under which epoch, and what is known of its requests.

    The predecessor may have begun records up to `inherited_until`, with a journal from `inherited_low` on.
    """

    producer: AIOKafkaProducer
    offset: int
    epoch: int
    journal: dict[RequestIdentity, Progress]
    inherited_low: int
    inherited_until: int


async def take_over(claim: Claim) -> Tenure:
    """Take a partition over from whoever had it. The consumer keeps it paused meanwhile.

    Raises:
        Fenced: another process took it over in the same moment.
        BrokerUnavailable: a step failed.
    """
    kafka, tp = claim.context.settings.kafka, claim.tp
    transactional_id = claim.context.names.transactional_id(claim.group, tp.topic, tp.partition)
    producer = make_producer(kafka, transactional_id=transactional_id)
    reader = make_consumer(kafka)
    try:
        try:
            with _our_errors(claim.writer.source):
                tenure = await _take_over(claim, producer, reader)
        finally:
            await reader.stop()
    except BaseException:
        await close_producer(producer)
        raise
    return tenure


async def _take_over(claim: Claim, producer: AIOKafkaProducer, reader: AIOKafkaConsumer) -> Tenure:
    context, tp = claim.context, claim.tp
    await reader.start()
    # This fences the predecessor and completes its transaction. What is committed is read only then: before, it may be
    # stale, and it may still move.
    await producer.start()
    position = await committed_position(context.admin, reader, claim.group, tp)
    inherited_until = (await reader.end_offsets([tp]))[tp]
    epoch = await _write_mark(claim, producer, position)
    low = position.checkpoint.tokens_low if position.checkpoint else None
    entries = await read_back(
        reader,
        TopicPartition(context.names.tokens, tp.partition),
        mark_offset=epoch,
        tokens_low=low,
        # The longest that another's open transaction can last, and as long again for the broker to notice.
        patience_s=2 * context.settings.kafka.transaction_timeout_ms / _MS_PER_S,
    )
    return Tenure(producer, position.offset, epoch, rebuild(entries), low or 0, inherited_until)


async def _write_mark(claim: Claim, producer: AIOKafkaProducer, position: CommittedPosition) -> int:
    """Write the takeover mark and commit the unchanged offset in one transaction. The mark's offset is the epoch."""
    previous, clock = position.checkpoint, claim.context.clock
    record = claim.writer.takeover(position.offset, previous.epoch if previous else None, claim.context.hashes)
    await producer.begin_transaction()
    mark = await producer.send_and_wait(record.topic, record.value, key=record.key, partition=record.partition)
    checkpoint = Checkpoint(epoch=mark.offset, tokens_low=previous.tokens_low if previous else 0)
    committed = OffsetAndMetadata(position.offset, encode_checkpoint(checkpoint))
    await producer.send_offsets_to_transaction({claim.tp: committed}, claim.group)
    await producer.commit_transaction()
    clock.hear(mark.timestamp)
    epoch: int = mark.offset
    return epoch


@contextmanager
def _our_errors(source: str) -> Iterator[None]:
    try:
        yield
    except ProducerFenced as error:
        raise Fenced(f"another process took over {source} in the same moment") from error
    except KafkaError as error:
        raise BrokerUnavailable(f"{source} cannot be taken over: {error!r}") from error
