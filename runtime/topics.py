"""Topics on the broker: created from the registry, checked before a role calls itself ready, listed with their ends."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from aiokafka import TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaConnectionError, TopicAlreadyExistsError, for_code

from runtime.kafka import make_admin, make_consumer, running
from schemas.errors import BrokerUnavailable, HeadraceError, SettingsError
from schemas.settings import KafkaSettings
from schemas.topics import TopicSpec

_OK = 0

# A topic that was just created is known to every broker, with leaders, within milliseconds.
_VISIBLE_WITHIN_S = 30.0
_VISIBLE_POLL_S = 0.02
_START_POLL_S = 0.1


class Extent(NamedTuple):
    """The offset of the oldest record that a partition keeps, and the one that the next record will have."""

    start: int
    end: int


class TopicStatus(msgspec.Struct, kw_only=True, frozen=True):
    """One topic of the registry as it is on the broker. `num_records` counts end minus start, markers included."""

    name: str
    exists: bool
    partitions: int = 0
    num_records: int = 0
    end_offsets: list[int] = []
    configs: dict[str, str] = {}


async def create_missing(kafka: KafkaSettings, specs: Iterable[TopicSpec]) -> list[str]:
    """Create the topics that do not exist yet, and give their names; all can be used when this returns.

    Existing ones are left as they are.
    """
    wanted = {spec.name: spec for spec in specs}
    async with running(make_admin(kafka)) as admin:
        missing = [spec for name, spec in wanted.items() if name not in set(await admin.list_topics())]
        if missing:
            response = await admin.create_topics([_new_topic(spec) for spec in missing])
            for name, code, *_ in response.topic_errors:
                # Another process may have been faster: that is what was wanted.
                if code not in (_OK, TopicAlreadyExistsError.errno):
                    raise BrokerUnavailable(f"topic {name} cannot be created: {for_code(code).__name__}")
        await _wait_visible(admin, list(wanted))
        return [spec.name for spec in missing]


async def require(kafka: KafkaSettings, names: Iterable[str]) -> None:
    """Wait for the broker and the topics, up to `startup_timeout_s`: a role may be started together with both.

    aiokafka itself notices a missing topic only after some 40 s.

    Raises:
        SettingsError: some are missing; says how to create them.
        BrokerUnavailable: the broker does not answer.
    """
    wanted, deadline_s = set(names), time.monotonic() + kafka.startup_timeout_s
    while (fault := await _missing(kafka, wanted)) is not None:
        if time.monotonic() >= deadline_s:
            raise fault
        await asyncio.sleep(_START_POLL_S)


async def _missing(kafka: KafkaSettings, wanted: set[str]) -> HeadraceError | None:
    """What a role cannot start without."""
    # Asked before aiokafka is, which would log each refused connection as an error.
    if not await _any_listens(kafka):
        return BrokerUnavailable(
            f"Kafka does not answer at {kafka.bootstrap_servers}: is kafka.bootstrap_servers right?"
        )
    try:
        async with running(make_admin(kafka)) as admin:
            missing = sorted(wanted - set(await admin.list_topics()))
    except KafkaConnectionError as error:
        return BrokerUnavailable(f"Kafka does not answer at {kafka.bootstrap_servers}: {error}")
    if not missing:
        return None
    return SettingsError(f"topics are missing: {', '.join(missing)}; create them with `headrace topics create`")


async def _any_listens(kafka: KafkaSettings) -> bool:
    for server in filter(None, (kafka.bootstrap_servers or "").split(",")):
        host, _, port = server.strip().rpartition(":")
        try:
            connecting = asyncio.open_connection(host.strip("[]"), int(port))
            _, writer = await asyncio.wait_for(connecting, kafka.startup_timeout_s)
        except (OSError, ValueError):
            continue
        writer.close()
        # Else a loop that ends right now leaves the connection to the collector.
        with suppress(OSError):
            await writer.wait_closed()
        return True
    # Without any server, aiokafka's client says what is missing.
    return not kafka.bootstrap_servers


async def partition_counts(kafka: KafkaSettings, names: Sequence[str]) -> dict[str, int]:
    """How many partitions each topic has; those that do not exist are left out."""
    async with running(make_admin(kafka)) as admin:
        return await count_partitions(admin, names)


async def count_partitions(admin: Any, names: Sequence[str]) -> dict[str, int]:
    """The same, over an admin client that is connected already."""
    described = await described_topics(admin, names)
    return {name: len(topic["partitions"]) for name, topic in described.items() if topic["error_code"] == _OK}


async def described_topics(admin: Any, names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """Those of the topics that exist, by name, as the broker describes them.

    All topics are asked for: whoever names one in aiokafka's version of the request creates it, where the broker has
    `auto.create.topics.enable` (which is on by default), with the broker's settings and not with ours.
    """
    wanted = set(names)
    return {topic["topic"]: topic for topic in await admin.describe_topics() if topic["topic"] in wanted}


async def find_extents(consumer: Any, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Extent]:
    """The extent of each partition (read_committed). The consumer is assigned to all of them, paused."""
    # Assigned first, so that aiokafka learns the leaders of all topics at once (else one after the other, 0.1 s each);
    # paused, since a broker answers a connection in order: a look-up would wait behind a fetch that waits for records.
    consumer.assign(partitions)
    consumer.pause(*partitions)
    if not partitions:
        return {}
    starts, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    return {tp: Extent(starts[tp], ends[tp]) for tp in partitions}


async def describe(kafka: KafkaSettings, specs: Sequence[TopicSpec]) -> list[TopicStatus]:
    """The registry's topics as they are: partitions, records, end offsets (read_committed), the configs that we set."""
    async with running(make_admin(kafka)) as admin, running(make_consumer(kafka)) as consumer:
        counts = await count_partitions(admin, [spec.name for spec in specs])
        configs = await _configs(admin, [spec for spec in specs if spec.name in counts])
        partitions = [TopicPartition(name, number) for name, count in counts.items() for number in range(count)]
        extents = await find_extents(consumer, partitions)
    return [
        _status(spec.name, [extents[tp] for tp in partitions if tp.topic == spec.name], configs[spec.name])
        if spec.name in counts
        else TopicStatus(name=spec.name, exists=False)
        for spec in specs
    ]


def _status(name: str, extents: Sequence[Extent], configs: Mapping[str, str]) -> TopicStatus:
    return TopicStatus(
        name=name,
        exists=True,
        partitions=len(extents),
        num_records=sum(extent.end - extent.start for extent in extents),
        end_offsets=[extent.end for extent in extents],
        configs=dict(configs),
    )


async def _configs(admin: Any, specs: Sequence[TopicSpec]) -> dict[str, dict[str, str]]:
    if not specs:
        return {}
    asked = [ConfigResource(ConfigResourceType.TOPIC, spec.name, dict.fromkeys(spec.configs)) for spec in specs]
    found: dict[str, dict[str, str]] = {}
    for response in await admin.describe_configs(asked):
        for code, _, _, name, entries in response.resources:
            if code != _OK:
                raise BrokerUnavailable(f"the configs of topic {name} cannot be read: {for_code(code).__name__}")
            found[name] = {entry[0]: entry[1] for entry in entries}
    return found


async def _wait_visible(admin: Any, names: Sequence[str]) -> None:
    try:
        async with asyncio.timeout(_VISIBLE_WITHIN_S):
            while not await _are_visible(admin, names):  # noqa: ASYNC110 (polled, since the broker sends no event)
                await asyncio.sleep(_VISIBLE_POLL_S)
    except TimeoutError:
        raise BrokerUnavailable(
            f"topics were created, but some have no leader after {_VISIBLE_WITHIN_S:g} s; are all brokers up?"
        ) from None


async def _are_visible(admin: Any, names: Sequence[str]) -> bool:
    found = await described_topics(admin, names)
    return all(name in found and _has_leaders(found[name]) for name in names)


def _has_leaders(topic: Mapping[str, Any]) -> bool:
    partitions = topic["partitions"]
    return (
        topic["error_code"] == _OK
        and bool(partitions)
        and all(partition["error_code"] == _OK and partition["leader"] >= 0 for partition in partitions)
    )


def _new_topic(spec: TopicSpec) -> NewTopic:
    return NewTopic(spec.name, spec.partitions, spec.replication_factor, topic_configs=spec.configs)
