"""Reading to an end on the real broker: past what is not committed, and not for ever where the end does not come."""

import asyncio

import msgspec
import pytest
from aiokafka import TopicPartition

from consumers.gate.takeover import read_to_end
from headrace.groups import role_groups
from headrace.local.background import BackgroundStack
from headrace.pending import pending_work
from runtime.kafka import make_consumer, make_producer, running
from runtime.reading import read_up_to
from runtime.topics import create_missing, partition_counts
from schemas.errors import BrokerUnavailable
from schemas.names import Names
from schemas.settings import KafkaSettings, TopicsSettings
from schemas.topics import registry

pytestmark = pytest.mark.integration


@pytest.fixture
def names(namespace: str) -> Names:
    return Names(namespace)


@pytest.fixture
async def kafka(stack: BackgroundStack, names: Names) -> KafkaSettings:
    """With transactions that may last half a second: who waits for one waits for two of them."""
    settings = KafkaSettings(bootstrap_servers=stack.bootstrap_servers, transaction_timeout_ms=500)
    await create_missing(settings, registry(names, TopicsSettings(namespace=names.namespace, partitions=2), ["m"]))
    return settings


async def test_batches_come_up_to_the_ends_and_nothing_behind_them(kafka: KafkaSettings, names: Names) -> None:
    partitions = [TopicPartition(names.turns(), number) for number in range(2)]
    lasting = msgspec.structs.replace(kafka, transaction_timeout_ms=30_000)
    async with running(make_producer(lasting, transactional_id=f"{names.prefix}.test")) as producer:
        for commits in (True, False, True):
            await producer.begin_transaction()
            for tp in partitions:
                await producer.send_and_wait(tp.topic, str(commits).encode(), partition=tp.partition)
            await (producer.commit_transaction() if commits else producer.abort_transaction())
    async with running(make_consumer(kafka)) as consumer:
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        # The first two ends lie on a marker and on what was aborted: no record will ever stand there.
        for ends in ({partitions[0]: 2, partitions[1]: 4}, {partitions[0]: 5}):
            found = [record async for batch in read_up_to(consumer, ends, patience_s=10) for record in batch]
            assert all(record.offset < ends[TopicPartition(record.topic, record.partition)] for record in found)
            assert {record.value for record in found} <= {b"True"}
        assert consumer.paused() == set(partitions)


async def test_nothing_is_read_where_nothing_is_asked_for(kafka: KafkaSettings, names: Names) -> None:
    async with running(make_consumer(kafka)) as consumer:
        assert [batch async for batch in read_up_to(consumer, {}, patience_s=1)] == []


async def test_reading_may_take_longer_than_its_patience_while_it_moves(kafka: KafkaSettings, names: Names) -> None:
    """Behind a record that was open for hours a takeover has much to read."""
    tp, num_records, patience_s = TopicPartition(names.turns(), 0), 8, 2.0
    async with running(make_producer(kafka)) as producer:
        for _ in range(num_records):
            await producer.send_and_wait(tp.topic, b"x", partition=0)
    async with running(make_consumer(kafka, max_poll_records=1)) as consumer:
        consumer.assign([tp])
        await consumer.seek_to_beginning(tp)
        found = 0
        async for batch in read_up_to(consumer, {tp: num_records}, patience_s=patience_s):
            found += len(batch)
            await asyncio.sleep(patience_s / 6)
        assert found == num_records


async def test_a_takeover_that_waits_for_an_open_transaction_gives_up_and_says_where(
    kafka: KafkaSettings, names: Names
) -> None:
    lasting = msgspec.structs.replace(kafka, transaction_timeout_ms=30_000)
    async with running(make_producer(lasting, transactional_id=f"{names.prefix}.open")) as other:
        await other.begin_transaction()
        await other.send_and_wait(names.sessions, b"open", key=b"k", partition=1)
        with pytest.raises(BrokerUnavailable, match=rf"{names.sessions}-1 at 0 of 1; a transaction stays open"):
            await read_to_end(kafka, TopicPartition(names.sessions, 1))
        await other.abort_transaction()
    assert await read_to_end(kafka, TopicPartition(names.sessions, 1)) == []


async def test_pending_work_is_counted_without_markers_and_without_what_was_aborted(
    kafka: KafkaSettings, names: Names
) -> None:
    async with running(make_producer(kafka, transactional_id=f"{names.prefix}.counted")) as producer:
        for commits in (True, False, True):
            await producer.begin_transaction()
            await producer.send_and_wait(names.turns(), b"x", partition=0)
            await (producer.commit_transaction() if commits else producer.abort_transaction())
    counts = await partition_counts(kafka, [names.turns(), names.requests()])
    work = await pending_work(kafka, role_groups(names, ["m"]), counts)
    assert {item.topic: item.num_records for item in work} == {names.requests(): 0, names.turns(): 2}
