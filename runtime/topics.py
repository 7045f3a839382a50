"""Topics on the broker: created from the registry, checked before a role calls itself ready, listed with their ends."""

from collections.abc import Iterable

import msgspec
from aiokafka import TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.errors import TopicAlreadyExistsError, for_code

from runtime.kafka import make_admin, make_consumer
from schemas.errors import BrokerUnavailable, SettingsError
from schemas.settings import KafkaSettings
from schemas.topics import TopicSpec

_OK = 0


class TopicStatus(msgspec.Struct, kw_only=True, frozen=True):
    """One topic of the registry as it is on the broker. `num_records` counts end minus start, markers included."""

    name: str
    exists: bool
    partitions: int = 0
    num_records: int = 0
    end_offsets: list[int] = []


async def create_missing(kafka: KafkaSettings, specs: Iterable[TopicSpec]) -> list[str]:
    """Create the topics that do not exist yet, and give their names. Existing ones are left as they are."""
    wanted = {spec.name: spec for spec in specs}
    admin = make_admin(kafka)
    await admin.start()
    try:
        missing = [spec for name, spec in wanted.items() if name not in set(await admin.list_topics())]
        if not missing:
            return []
        response = await admin.create_topics([_new_topic(spec) for spec in missing])
        for name, code, *_ in response.topic_errors:
            # Another process may have been faster: that is what was wanted.
            if code not in (_OK, TopicAlreadyExistsError.errno):
                raise BrokerUnavailable(f"topic {name} cannot be created: {for_code(code).__name__}")
        return [spec.name for spec in missing]
    finally:
        await admin.close()


async def require(kafka: KafkaSettings, names: Iterable[str]) -> None:
    """Check that the topics exist. aiokafka itself notices a missing one only after some 40 s.

    Raises:
        SettingsError: some are missing; says how to create them.
    """
    admin = make_admin(kafka)
    await admin.start()
    try:
        missing = sorted(set(names) - set(await admin.list_topics()))
    finally:
        await admin.close()
    if missing:
        raise SettingsError(f"topics are missing: {', '.join(missing)}; create them with `headrace topics create`")


async def describe(kafka: KafkaSettings, specs: Iterable[TopicSpec]) -> list[TopicStatus]:
    """The registry's topics as they are: partitions, records, end offsets (read_committed)."""
    consumer = make_consumer(kafka)
    await consumer.start()
    try:
        existing = await consumer.topics()
        return [
            await _describe(consumer, spec.name) if spec.name in existing else TopicStatus(name=spec.name, exists=False)
            for spec in specs
        ]
    finally:
        await consumer.stop()


async def _describe(consumer, name: str) -> TopicStatus:  # type: ignore[no-untyped-def] # aiokafka has no types
    ids = sorted(consumer.partitions_for_topic(name) or ())
    partitions = [TopicPartition(name, number) for number in ids]
    starts, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    return TopicStatus(
        name=name,
        exists=True,
        partitions=len(partitions),
        num_records=sum(ends[tp] - starts[tp] for tp in partitions),
        end_offsets=[ends[tp] for tp in partitions],
    )


def _new_topic(spec: TopicSpec) -> NewTopic:
    return NewTopic(spec.name, spec.partitions, spec.replication_factor, topic_configs=spec.configs)
