"""`headrace doctor` on the real broker and the real S3; and the conditional put that it looks for."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiokafka.admin import NewTopic

from headrace.doctor import Finding
from headrace.doctor.broker import NAMES as BROKER_NAMES
from headrace.doctor.broker import examine_broker
from headrace.doctor.situation import Situation
from headrace.doctor.storage import examine_storage
from headrace.local.background import BackgroundStack
from runtime.config import LoadedSettings, load_settings
from runtime.kafka import make_admin, running
from runtime.storage import ObjectStore
from runtime.topics import create_missing
from schemas.names import Names
from schemas.settings import KafkaSettings, Settings, TopicsSettings
from schemas.topics import registry
from tests.tied import tied

pytestmark = pytest.mark.integration

HEADRACE = Path(sys.executable).with_name("headrace")


@pytest.fixture
def settings(stack: BackgroundStack, namespace: str) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=stack.endpoints.bootstrap_servers),
        storage=stack.endpoints.storage,
        topics=TopicsSettings(namespace=namespace, partitions=3),
    )


@pytest.fixture
async def store(settings: Settings) -> AsyncIterator[ObjectStore]:
    opened = ObjectStore(settings.storage)
    yield opened
    opened.close()


def situation(settings: Settings, *, is_dev: bool) -> Situation:
    sources = {**load_settings(None, {}).sources, "kafka.bootstrap_servers": "--set kafka.bootstrap_servers"}
    return Situation(LoadedSettings(settings, sources), is_dev)


async def broker_findings(settings: Settings, *, is_dev: bool) -> dict[str, Finding]:
    return {finding.name: finding for finding in await examine_broker(situation(settings, is_dev=is_dev))}


async def storage_findings(settings: Settings) -> dict[str, Finding]:
    return {finding.name: finding for finding in await examine_storage(situation(settings, is_dev=True))}


async def create_topics(settings: Settings) -> None:
    names = Names(settings.topics.namespace)
    await create_missing(settings.kafka, registry(names, settings.topics, settings.models))


async def test_the_command_finds_a_complete_set_up_well_and_leaves_nothing_behind(
    settings: Settings, store: ObjectStore, tmp_path: Path
) -> None:
    await create_topics(settings)
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
        **{name: str(tmp_path) for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")},
        "HEADRACE_KAFKA__BOOTSTRAP_SERVERS": str(settings.kafka.bootstrap_servers),
        "HEADRACE_STORAGE__ENDPOINT": str(settings.storage.endpoint),
        "HEADRACE_STORAGE__BUCKET": settings.storage.bucket,
        "HEADRACE_STORAGE__ACCESS_KEY": str(settings.storage.access_key),
        "HEADRACE_STORAGE__SECRET_KEY": str(settings.storage.secret_key),
        "HEADRACE_TOPICS__NAMESPACE": settings.topics.namespace,
        "HEADRACE_TOPICS__PARTITIONS": "3",
    }
    process = await asyncio.create_subprocess_exec(
        *tied(HEADRACE, "doctor", "--dev", "--json"), env=env, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    found = {finding["name"]: finding for finding in json.loads(out)}
    assert process.returncode == 0, out
    looked_at = [*BROKER_NAMES, "object storage", "S3 put, get, delete", "S3 conditional put"]
    assert {name: found[name]["found"] for name in looked_at if found[name]["status"] != "ok"} == {}
    assert found["broker version"]["found"].startswith("Kafka 4.4 ")
    assert str(settings.storage.secret_key) not in out.decode()
    assert await store.keys(settings.topics.namespace) == []


async def test_one_broker_is_not_enough_outside_dev_and_missing_topics_are_not_created_by_asking(
    settings: Settings,
) -> None:
    found = await broker_findings(settings, is_dev=False)
    assert found["topics"].status == found["transaction log"].status == "failed"
    assert found["topic replication"].status == "skipped"
    assert (await broker_findings(settings, is_dev=False))["topics"] == found["topics"]
    await create_topics(settings)
    found = await broker_findings(settings, is_dev=False)
    assert (found["topics"].status, found["topic replication"].status) == ("ok", "failed")
    assert "replication 1, min.insync.replicas 1; 3 and 2 are wanted" in found["topic replication"].found


async def test_topics_that_somebody_made_by_hand_are_found_wrong(settings: Settings) -> None:
    names = Names(settings.topics.namespace)
    by_hand = NewTopic(names.tokens, 5, 1, topic_configs={"retention.ms": "1000", "cleanup.policy": "compact"})
    async with running(make_admin(settings.kafka)) as admin:
        await admin.create_topics([by_hand])
    await create_topics(settings)
    found = await broker_findings(settings, is_dev=True)
    assert found["topics"].status == "ok"
    assert found["topic partitions"].found == f"5 in {names.tokens}, but 3 are set"
    assert found["topic configs"].status == "failed"
    for change in ("cleanup.policy=delete", "message.timestamp.type=LogAppendTime", "retention.ms=604800000"):
        assert f"{change} is wanted for {names.tokens}" in found["topic configs"].found


async def test_timeouts_that_the_broker_would_refuse_are_found_before_a_role_starts(settings: Settings) -> None:
    kafka = msgspec.structs.replace(settings.kafka, session_timeout_ms=10**9, transaction_timeout_ms=10**9)
    found = await broker_findings(msgspec.structs.replace(settings, kafka=kafka), is_dev=True)
    assert found["broker limits"].status == "failed"
    assert "kafka.session_timeout_ms" in str(found["broker limits"].remedy)
    assert "kafka.transaction_timeout_ms" in str(found["broker limits"].remedy)


@pytest.mark.parametrize(
    ("change", "text"),
    [({"bucket": "no-such-bucket"}, "has no bucket 'no-such-bucket'"), ({"secret_key": "wrong-secret"}, "refused")],
)
async def test_storage_that_cannot_be_used_is_found_and_its_secrets_are_not_told(
    settings: Settings, change: dict[str, str], text: str
) -> None:
    storage = msgspec.structs.replace(settings.storage, **change)
    found = await storage_findings(msgspec.structs.replace(settings, storage=storage))
    assert found["object storage"].status == "failed"
    assert text in found["object storage"].found
    assert found["S3 put, get, delete"].status == found["S3 conditional put"].status == "skipped"
    assert "wrong-secret" not in str(found)


async def test_a_conditional_put_writes_only_what_is_not_there(store: ObjectStore, namespace: str) -> None:
    key = f"{namespace}/a b/ü"
    assert await store.put_new(key, b"first")
    assert not await store.put_new(key, b"second")
    assert await store.get(key) == b"first"
    await store.delete(key)
    assert await store.put_new(key, b"")
    assert await store.get(key) == b""


async def test_of_many_conditional_puts_at_once_one_writes(store: ObjectStore, namespace: str) -> None:
    contents = [bytes([number]) * 1000 for number in range(8)]
    written = await asyncio.gather(*(store.put_new(f"{namespace}/a", content) for content in contents))
    assert sum(written) == 1
    assert await store.get(f"{namespace}/a") == contents[written.index(True)]


async def test_whether_the_bucket_is_there_is_told(settings: Settings, store: ObjectStore) -> None:
    assert await store.has_bucket()
    other = ObjectStore(msgspec.structs.replace(settings.storage, bucket="no-such-bucket"))
    assert not await other.has_bucket()
    other.close()
