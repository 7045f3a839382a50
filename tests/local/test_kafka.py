"""The local Kafka keeps its data through every way of stopping, and refuses what would endanger it."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from aiokafka.admin import NewTopic
from aiokafka.errors import UnknownTopicOrPartitionError

from headrace.local.background import BackgroundStack
from headrace.local.kafka import LocalKafka
from headrace.local.kafka_storage import new_cluster_id
from headrace.local.lock import LOCK_NAME, OwnedLock
from headrace.local.settings import LocalKafkaSettings
from runtime.kafka import make_admin, make_consumer, make_producer
from schemas.errors import LocalStackError
from schemas.settings import KafkaSettings
from tests.local.conftest import NewChildren
from tests.local.processes import end, first_line, python, survivors, until

pytestmark = pytest.mark.integration

HOLDER = """
import asyncio, sys
from pathlib import Path
from headrace.local.background import BackgroundStack
from headrace.local.kafka import LocalKafka
from headrace.local.lock import LOCK_NAME, OwnedLock
from headrace.local.settings import LocalKafkaSettings
async def main():
    async with LocalKafka(LocalKafkaSettings(data_dir=Path(sys.argv[1]))) as kafka:
        print(kafka.bootstrap_servers, kafka.process.pid, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A path with everything that a list, a URL or Latin-1 would trip over."""
    return tmp_path / "dätä, ü 日本"


@pytest.fixture
async def kafka(data_dir: Path) -> AsyncIterator[LocalKafka]:
    """A broker of the test's own, not started."""
    broker = LocalKafka(LocalKafkaSettings(data_dir=data_dir))
    yield broker
    await broker.stop()


async def create_topic(servers: str, name: str) -> None:
    admin = make_admin(KafkaSettings(bootstrap_servers=servers))
    await admin.start()
    try:
        await admin.create_topics([NewTopic(name, 1, 1)])
    finally:
        await admin.close()


async def produce(servers: str, topic: str, value: bytes) -> None:
    producer = make_producer(KafkaSettings(bootstrap_servers=servers))
    await producer.start()
    try:
        await producer.send_and_wait(topic, value)
    finally:
        await producer.stop()


async def read(servers: str, topic: str, count: int) -> list[bytes]:
    consumer = make_consumer(KafkaSettings(bootstrap_servers=servers), topic)
    await consumer.start()
    try:
        return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


async def test_a_killed_parent_leaves_no_broker_and_the_next_starts_find_its_data_at_its_address(
    kafka: LocalKafka, data_dir: Path
) -> None:
    parent = python(HOLDER, str(data_dir))
    try:
        servers, _, pid = first_line(parent).partition(" ")
        broker = psutil.Process(int(pid))
        guard = psutil.Process(broker.ppid())
        with pytest.raises(LocalStackError, match=f"in use by process {parent.pid};"):
            await kafka.start()
        await create_topic(servers, "t")
        await produce(servers, "t", b"before the kill")
        guard.suspend()  # so that the broker outlives its parent for a while
    finally:
        end(parent)
    starting = asyncio.create_task(kafka.start())
    folder_is_free = OwnedLock(data_dir / LOCK_NAME).try_acquire()
    guard.resume()
    assert not folder_is_free  # two brokers never share a folder: the start waits until the first is gone
    assert await starting == servers
    assert survivors([guard, broker]) == []
    await produce(servers, "t", b"before the stop")
    await kafka.stop()

    assert await kafka.start() == servers
    assert await read(servers, "t", 2) == [b"before the kill", b"before the stop"]
    assert "-XX:SharedArchiveFile=" in " ".join(psutil.Process(kafka.process.pid).cmdline())


async def test_data_survives_a_kill_of_the_broker_and_a_change_of_its_ports(kafka: LocalKafka, data_dir: Path) -> None:
    servers = await kafka.start()
    assert await kafka.start() == servers
    with pytest.raises(LocalStackError, match=f"in use by process {os.getpid()};"):
        await LocalKafka(LocalKafkaSettings(data_dir=data_dir)).start()
    await create_topic(servers, "t")
    await produce(servers, "t", b"acknowledged")
    os.kill(kafka.process.pid, signal.SIGKILL)
    assert await kafka.wait() == -signal.SIGKILL
    await kafka.stop()

    with squatters(data_dir):
        moved = await kafka.start()
        assert moved != servers
        assert await read(moved, "t", 1) == [b"acknowledged"]


@contextlib.contextmanager
def squatters(data_dir: Path) -> Iterator[None]:
    """Others that listen on all ports that a data folder remembers."""
    with contextlib.ExitStack() as listeners:
        for port in msgspec.json.decode((data_dir / "ports.json").read_bytes(), type=dict[str, int]).values():
            squatter = listeners.enter_context(socket.socket())
            squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            squatter.bind(("127.0.0.1", port))
            squatter.listen()
        yield


async def test_a_missing_topic_is_not_made_on_the_quiet(stack: BackgroundStack, namespace: str) -> None:
    admin = make_admin(KafkaSettings(bootstrap_servers=stack.bootstrap_servers))
    await admin.start()
    described = await admin.describe_topics([f"{namespace}.absent"])
    names = await admin.list_topics()
    await admin.close()
    assert described[0]["error_code"] == UnknownTopicOrPartitionError.errno
    assert f"{namespace}.absent" not in names


async def test_sessions_of_three_seconds_are_allowed(stack: BackgroundStack, namespace: str) -> None:
    await create_topic(stack.bootstrap_servers, f"{namespace}.t")
    settings = KafkaSettings(bootstrap_servers=stack.bootstrap_servers, session_timeout_ms=3000)
    consumer = make_consumer(settings, f"{namespace}.t", group=namespace)
    await consumer.start()
    await until(lambda: bool(consumer.assignment()))
    await consumer.stop()


async def test_a_broker_that_cannot_start_says_why_and_leaves_nothing(
    data_dir: Path, new_children: NewChildren
) -> None:
    states: list[str] = []
    broker = LocalKafka(LocalKafkaSettings(data_dir=data_dir, heap_mb=1), states.append)
    with pytest.raises(LocalStackError, match=r"could not format its storage(?s:.)*Invalid initial"):
        await broker.start()
    (data_dir / "data").mkdir()  # as if somebody had emptied it
    broker = LocalKafka(LocalKafkaSettings(data_dir=data_dir), states.append)
    with pytest.raises(LocalStackError, match=r"ended with code 1 before it was ready(?s:.)*meta.properties"):
        await broker.start()
    await broker.stop()
    with pytest.raises(LocalStackError, match="not started"):
        _ = broker.bootstrap_servers
    assert states == ["formatting", "starting"]
    assert new_children() == []


def test_a_cluster_id_is_never_taken_for_an_option() -> None:
    ids = {new_cluster_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert all(len(cluster_id) == 22 and cluster_id[0] != "-" for cluster_id in ids)
