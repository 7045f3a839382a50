"""Topics on the real broker: created as the registry says, required, described; keys partitioned as others do it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer

from headrace import Client
from headrace.local import kafka_storage
from headrace.local.background import BackgroundStack
from headrace.local.files import read_template
from headrace.local.kafka import LocalKafka
from headrace.local.settings import LocalKafkaSettings
from runtime.kafka import close, make_admin, make_consumer, make_producer, partition_for, running
from runtime.topics import create_missing, describe, partition_counts, require
from schemas.errors import SettingsError
from schemas.names import Names
from schemas.settings import KafkaSettings, Settings, TopicsSettings
from schemas.topics import TopicSpec, registry

pytestmark = pytest.mark.integration

MODELS = ["m-1"]


@pytest.fixture
def kafka(stack: BackgroundStack) -> KafkaSettings:
    return KafkaSettings(bootstrap_servers=stack.endpoints.bootstrap_servers)


@pytest.fixture
def specs(namespace: str) -> list[TopicSpec]:
    return registry(Names(namespace), TopicsSettings(namespace=namespace, partitions=3), MODELS)


async def test_topics_are_created_once_and_as_the_registry_says(kafka: KafkaSettings, specs: list[TopicSpec]) -> None:
    assert await create_missing(kafka, specs[:3]) == [spec.name for spec in specs[:3]]
    assert await create_missing(kafka, specs) == [spec.name for spec in specs[3:]]
    assert await create_missing(kafka, specs) == []
    for spec, status in zip(specs, await describe(kafka, specs), strict=True):
        assert (status.name, status.exists, status.partitions) == (spec.name, True, 3)
        assert status.configs == spec.configs
        assert status.end_offsets == [0, 0, 0]


async def test_topics_that_are_missing_are_named_with_the_remedy(kafka: KafkaSettings, specs: list[TopicSpec]) -> None:
    with pytest.raises(SettingsError, match=r"topics are missing: .*\.requests.*`headrace topics create`"):
        await require(kafka, [spec.name for spec in specs])
    assert not any(status.exists for status in await describe(kafka, specs))
    await create_missing(kafka, specs)
    await require(kafka, [spec.name for spec in specs])


async def test_asking_creates_nothing_on_a_broker_that_creates_what_it_is_asked_for(
    tmp_path: Path, specs: list[TopicSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default of Kafka's own `auto.create.topics.enable`: our topics would get the broker's counts and configs."""
    switch = "auto.create.topics.enable"

    def read_other_template(name: str) -> str:
        return read_template(name).replace(f"{switch}=false", f"{switch}=true")

    monkeypatch.setattr(kafka_storage, "read_template", read_other_template)
    async with LocalKafka(LocalKafkaSettings(data_dir=tmp_path)) as broker:
        settings = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, startup_timeout_s=0.1)
        wanted = [spec.name for spec in specs]
        async with running(make_admin(settings)) as admin:
            await admin.describe_topics(["made"])
            while "made" not in await admin.list_topics():  # noqa: ASYNC110 - it does create what is named
                await asyncio.sleep(0.05)
        assert await partition_counts(settings, wanted) == {}
        assert not any(status.exists for status in await describe(settings, specs))
        with pytest.raises(SettingsError):
            await require(settings, wanted)
        with pytest.raises(SettingsError):
            async with Client(Settings(kafka=settings, topics=TopicsSettings(namespace=specs[0].name.split(".")[0]))):
                pass
        async with running(make_admin(settings)) as admin:
            assert set(await admin.list_topics()) & set(wanted) == set()
        assert await create_missing(settings, specs) == wanted
        assert [status.configs for status in await describe(settings, specs)] == [spec.configs for spec in specs]


async def test_partitions_are_counted_of_the_topics_that_exist(kafka: KafkaSettings, specs: list[TopicSpec]) -> None:
    await create_missing(kafka, specs[:1])
    assert await partition_counts(kafka, [specs[0].name, specs[1].name]) == {specs[0].name: 3}
    assert await partition_counts(kafka, []) == {}


async def test_records_are_seen_in_the_end_offsets(kafka: KafkaSettings, specs: list[TopicSpec]) -> None:
    await create_missing(kafka, specs[:1])
    producer = make_producer(kafka)
    await producer.start()
    for partition in (0, 0, 2):
        await producer.send_and_wait(specs[0].name, b"x", partition=partition)
    await producer.stop()
    (status,) = await describe(kafka, specs[:1])
    assert (status.end_offsets, status.num_records) == ([2, 0, 1], 3)


@pytest.mark.parametrize("make", [make_producer, make_consumer, make_admin])
async def test_a_client_may_be_closed_right_after_its_start_or_before(make: Any, kafka: KafkaSettings) -> None:
    async with running(make(kafka)):
        pass
    await close(make(kafka))


async def test_closing_a_client_does_not_hide_that_the_caller_is_cancelled(kafka: KafkaSettings) -> None:
    async def use() -> None:
        async with running(make_consumer(kafka)):
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_librdkafka_with_murmur2_puts_a_key_where_we_look_for_it(
    kafka: KafkaSettings, specs: list[TopicSpec]
) -> None:
    await create_missing(kafka, specs[:1])
    found: dict[bytes, int] = {}

    def note(_: KafkaError | None, record: Message) -> None:
        key, partition = record.key(), record.partition()
        assert key is not None
        assert partition is not None
        found[key] = partition

    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "partitioner": "murmur2"})
    for key in [f"session-{number}".encode() for number in range(50)] + ["ключ".encode(), b"\xff\x00", b"x"]:
        producer.produce(specs[0].name, b"", key=key, on_delivery=note)
    assert producer.flush(30) == 0
    assert found == {key: partition_for(key, 3) for key in found}
    assert set(found.values()) == {0, 1, 2}
