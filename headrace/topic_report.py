"""The registry's topics beside what is on the broker: for `topics list` and the end of `demo`."""

import msgspec

from headrace.groups import role_groups
from headrace.pending import pending_work
from runtime.broker import broker_errors
from runtime.topics import create_missing, describe
from schemas.names import Names
from schemas.settings import Settings
from schemas.topics import TopicSpec, registry


class TopicReport(msgspec.Struct, kw_only=True, frozen=True):
    """One topic. `pending` is None where no group works it off.

    `configs` are as on the broker; `deviations` are those that differ from the registry, with what it says.
    """

    name: str
    holds: str
    exists: bool
    partitions: int
    end_offsets: list[int]
    pending: int | None
    configs: dict[str, str]
    deviations: dict[str, str]


async def create_topics(settings: Settings) -> list[str]:
    """Create what is missing; returns the names."""
    with broker_errors(settings.kafka):
        return await create_missing(settings.kafka, _specs(settings))


async def report_topics(settings: Settings) -> list[TopicReport]:
    """All topics of the registry, in its order."""
    specs, names = _specs(settings), Names(settings.topics.namespace, settings.topics.generation)
    with broker_errors(settings.kafka):
        found = {status.name: status for status in await describe(settings.kafka, specs)}
        counts = {name: status.partitions for name, status in found.items() if status.exists}
        work = await pending_work(settings.kafka, role_groups(names, settings.models), counts)
    pending = {item.topic: item.num_records for item in work}
    return [
        TopicReport(
            name=spec.name,
            holds=spec.holds,
            exists=found[spec.name].exists,
            partitions=found[spec.name].partitions,
            end_offsets=found[spec.name].end_offsets,
            pending=pending.get(spec.name),
            configs=found[spec.name].configs,
            deviations=_deviations(spec, found[spec.name].configs, found[spec.name].partitions),
        )
        for spec in specs
    ]


def _specs(settings: Settings) -> list[TopicSpec]:
    names = Names(settings.topics.namespace, settings.topics.generation)
    return registry(names, settings.topics, settings.models)


def _deviations(spec: TopicSpec, configs: dict[str, str], partitions: int) -> dict[str, str]:
    if not partitions:
        return {}
    wrong = {name: wanted for name, wanted in spec.configs.items() if configs.get(name) != wanted}
    return wrong | ({"partitions": str(spec.partitions)} if partitions != spec.partitions else {})
