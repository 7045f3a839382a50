"""`control` on the real broker: read back before anything else, then followed, whatever else stands there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiokafka import AIOKafkaProducer

from consumers.control import ControlReader
from consumers.journal import RequestIdentity
from headrace.local.background import BackgroundStack
from runtime.clock import BrokerClock
from runtime.kafka import make_producer, running
from runtime.topics import create_missing
from schemas.names import Names
from schemas.settings import KafkaSettings, TopicsSettings
from schemas.topics import registry
from tests.consumers.cancelling import GARBAGE, written

pytestmark = pytest.mark.integration

NUM_PARTITIONS = 3


@pytest.fixture
async def names(stack: BackgroundStack, namespace: str) -> Names:
    topics = TopicsSettings(namespace=namespace, partitions=NUM_PARTITIONS)
    await create_missing(kafka(stack), registry(Names(namespace), topics, []))
    return Names(namespace)


@pytest.fixture
async def producer(stack: BackgroundStack, names: Names) -> AsyncIterator[AIOKafkaProducer]:
    async with running(make_producer(kafka(stack))) as started:
        yield started


def kafka(stack: BackgroundStack) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=stack.bootstrap_servers)


@asynccontextmanager
async def reading(stack: BackgroundStack, names: Names) -> AsyncIterator[ControlReader]:
    reader = ControlReader(kafka(stack), names, max_age_s=3_600.0, clock=BrokerClock())
    try:
        await reader.start()
        yield reader
        assert not reader.following.done()
    finally:
        await reader.stop()


class Listener:
    """Keeps whom it is told of."""

    def __init__(self, reader: ControlReader) -> None:
        self.heard: list[str] = []
        self._news = asyncio.Event()
        reader.listen(self)

    def __call__(self, identity: RequestIdentity) -> None:
        self.heard.append(identity.request_id)
        self._news.set()

    async def until(self, *request_ids: str) -> None:
        while not set(request_ids) <= set(self.heard):
            self._news.clear()
            await self._news.wait()


async def cancel(producer: AIOKafkaProducer, names: Names, request_id: str, partition: int = 0) -> None:
    key, value = written(request_id)
    await producer.send_and_wait(names.control, value, key=key, partition=partition)


async def test_what_stands_in_any_partition_is_known_when_it_has_started(
    stack: BackgroundStack, names: Names, producer: AIOKafkaProducer
) -> None:
    for partition in range(NUM_PARTITIONS):
        for number in range(200):
            await producer.send(names.control, written(f"{partition}.{number}").value, partition=partition)
    await producer.flush()
    async with reading(stack, names) as reader:
        assert len(reader.book) == 200 * NUM_PARTITIONS


async def test_what_comes_later_is_told_at_once_and_nothing_is_told_twice(
    stack: BackgroundStack, names: Names, producer: AIOKafkaProducer
) -> None:
    await cancel(producer, names, "before")
    async with reading(stack, names) as reader:
        listener = Listener(reader)
        for number in range(20):
            await cancel(producer, names, f"r{number}", number % NUM_PARTITIONS)
        await listener.until(*(f"r{number}" for number in range(20)))
        assert len(listener.heard) == 20
        assert len(reader.book) == 21
        reader.unlisten(listener)
        other = Listener(reader)
        await cancel(producer, names, "last")
        await other.until("last")
        assert "last" not in listener.heard


async def test_an_empty_topic_is_read_as_well(stack: BackgroundStack, names: Names, producer: AIOKafkaProducer) -> None:
    async with reading(stack, names) as reader:
        assert len(reader.book) == 0
        listener = Listener(reader)
        await cancel(producer, names, "r")
        await listener.until("r")


async def test_garbage_is_passed_over_before_and_after_the_start(
    stack: BackgroundStack, names: Names, producer: AIOKafkaProducer
) -> None:
    async def litter() -> None:
        for value in GARBAGE:
            await producer.send_and_wait(
                names.control, value, key=b"k", partition=0, headers=[("x", None), ("y", b"\xff")]
            )

    await litter()
    await cancel(producer, names, "one")
    async with reading(stack, names) as reader:
        assert len(reader.book) == 1
        listener = Listener(reader)
        await litter()
        await cancel(producer, names, "two")
        await listener.until("two")


async def test_an_aborted_cancel_means_nobody_and_an_open_transaction_holds_no_start_up(
    stack: BackgroundStack, names: Names, producer: AIOKafkaProducer
) -> None:
    stranger = make_producer(kafka(stack), transactional_id=f"{names.prefix}.stranger")
    async with running(stranger):
        await stranger.begin_transaction()
        await stranger.send_and_wait(names.control, written("aborted").value, partition=0)
        await stranger.abort_transaction()
        await cancel(producer, names, "before")
        await stranger.begin_transaction()
        await stranger.send_and_wait(names.control, written("open").value, partition=0)
        await cancel(producer, names, "behind", partition=0)
        await cancel(producer, names, "beside", partition=1)
        async with reading(stack, names) as reader:
            assert len(reader.book) == 2
            listener = Listener(reader)
            await stranger.commit_transaction()
            await listener.until("open", "behind")
            assert len(reader.book) == 4
