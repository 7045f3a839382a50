"""The topics on the broker against the registry: there, with their counts and configs, and durable."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from headrace.doctor.base import Check, Finding, failed, ok, skipped, warning
from headrace.doctor.configs import read_configs
from headrace.doctor.situation import Situation
from schemas.names import Names
from schemas.topics import TopicSpec, registry

TOPICS, PARTITIONS, CONFIGS, REPLICATION = "topics", "topic partitions", "topic configs", "topic replication"
NAMES = (TOPICS, PARTITIONS, CONFIGS, REPLICATION)

_OK = 0
_MS_PER_S = 1000
_MS_PER_HOUR = 3_600_000
# How many topics of one fault are named.
_MAX_NAMED = 3
# Configs that must be as in the registry, to the letter; others may be stricter than it.
_EXACT = ("cleanup.policy", "message.timestamp.type")
_NONE_THERE = "no topic is there"
_REMEDY = "let the user of kafka.sasl_username describe topics and their configs"


class TopicFacts(NamedTuple):
    """One topic as it is. `replicas` and `in_sync` are those of its weakest partition."""

    partitions: int
    leaderless: int
    replicas: int
    in_sync: int
    configs: Mapping[str, str]


def checks(situation: Situation, admin: Any) -> list[Check]:
    """All checks of this file, as one look at the topics."""

    async def examine() -> Sequence[Finding]:
        specs = specs_of(situation)
        facts = await read_topics(admin, specs)
        return [
            judge_existence(specs, facts),
            judge_partitions(specs, facts),
            judge_configs(situation, specs, facts),
            judge_replication(situation, facts),
        ]

    return [Check(TOPICS, examine, _REMEDY)]


def specs_of(situation: Situation) -> list[TopicSpec]:
    """The registry under these settings."""
    settings = situation.settings
    return registry(Names(settings.topics.namespace, settings.topics.generation), settings.topics, settings.models)


async def read_topics(admin: Any, specs: Sequence[TopicSpec]) -> dict[str, TopicFacts]:
    """Those of the registry that exist."""
    wanted = {spec.name: spec for spec in specs}
    # All are asked for: a question by name would create the topic on a broker that makes topics by itself.
    described = [
        topic
        for topic in await admin.describe_topics()
        if topic["topic"] in wanted and topic["error_code"] == _OK and topic["partitions"]
    ]
    configs = await read_configs(
        admin,
        [
            ConfigResource(ConfigResourceType.TOPIC, topic["topic"], dict.fromkeys(wanted[topic["topic"]].configs))
            for topic in described
        ],
    )
    return {topic["topic"]: _facts(topic["partitions"], configs[topic["topic"]]) for topic in described}


def _facts(partitions: Sequence[Mapping[str, Any]], configs: Mapping[str, str]) -> TopicFacts:
    return TopicFacts(
        partitions=len(partitions),
        leaderless=sum(partition["leader"] < 0 for partition in partitions),
        replicas=min(len(partition["replicas"]) for partition in partitions),
        in_sync=min(len(partition["isr"]) for partition in partitions),
        configs=configs,
    )


def judge_existence(specs: Sequence[TopicSpec], facts: Mapping[str, TopicFacts]) -> Finding:
    """All of the registry, each partition with a leader."""
    missing = [spec.name for spec in specs if spec.name not in facts]
    if missing:
        return failed(
            TOPICS, f"{len(missing)} of {len(specs)} are missing: {_named(missing)}", "headrace topics create"
        )
    leaderless = [name for name, fact in facts.items() if fact.leaderless]
    if leaderless:
        return failed(TOPICS, f"without a leader for all partitions: {_named(leaderless)}", "start the missing brokers")
    return ok(TOPICS, f"all {len(specs)} of the registry are there")


def judge_partitions(specs: Sequence[TopicSpec], facts: Mapping[str, TopicFacts]) -> Finding:
    """The key alone decides the partition, so all topics have the one count that is set."""
    if not facts:
        return skipped(PARTITIONS, _NONE_THERE)
    wanted = specs[0].partitions
    by_count: dict[int, list[str]] = defaultdict(list)
    for name, fact in facts.items():
        by_count[fact.partitions].append(name)
    if set(by_count) == {wanted}:
        return ok(PARTITIONS, f"{wanted} each")
    found = "; ".join(f"{count} in {_named(names)}" for count, names in by_count.items() if count != wanted)
    if len(by_count) == 1 and len(facts) == len(specs):
        return failed(PARTITIONS, f"{found}, but {wanted} are set", f"set topics.partitions={next(iter(by_count))}")
    remedy = "counts never change: raise topics.generation, then `headrace topics create`"
    return failed(PARTITIONS, f"{found}, but {wanted} are set", remedy)


def judge_configs(situation: Situation, specs: Sequence[TopicSpec], facts: Mapping[str, TopicFacts]) -> Finding:
    """Cleanup policy and timestamps as in the registry; kept for at least as long as a request may be old."""
    if not facts:
        return skipped(CONFIGS, _NONE_THERE)
    max_age_ms = int(situation.settings.gate.max_age_s * _MS_PER_S)
    faults: dict[str, list[str]] = defaultdict(list)
    for spec in specs:
        if spec.name in facts:
            for change in _changes(spec, facts[spec.name].configs, max_age_ms):
                faults[change].append(spec.name)
    if not faults:
        return ok(CONFIGS, f"cleanup, timestamps and retention (over {max_age_ms / _MS_PER_HOUR:g} hours) are right")
    found = "; ".join(f"{change} is wanted for {_named(names)}" for change, names in faults.items())
    change, names = next(iter(faults.items()))
    servers = situation.settings.kafka.bootstrap_servers
    remedy = (
        f"kafka-configs.sh --bootstrap-server {servers} --alter --entity-type topics --entity-name {names[0]} "
        f"--add-config {change}"
    )
    return failed(CONFIGS, found, remedy + (" (and so on)" if len(faults) > 1 or len(names) > 1 else ""))


def _changes(spec: TopicSpec, configs: Mapping[str, str], max_age_ms: int) -> list[str]:
    """What to set, as NAME=VALUE."""
    changes = [f"{name}={spec.configs[name]}" for name in _EXACT if configs.get(name) != spec.configs[name]]
    kept_ms = configs.get("retention.ms")
    if not spec.is_compacted and kept_ms is not None and 0 <= int(kept_ms) < max_age_ms:
        changes.append(f"retention.ms={max(max_age_ms, int(spec.configs['retention.ms']))}")
    return changes


def judge_replication(situation: Situation, facts: Mapping[str, TopicFacts]) -> Finding:
    """Whether the loss of one broker loses nothing, and stops nothing."""
    if not facts:
        return skipped(REPLICATION, _NONE_THERE)
    replicas = min(fact.replicas for fact in facts.values())
    insync = min(_min_insync(fact) for fact in facts.values())
    found = f"replication {replicas}, min.insync.replicas {insync}"
    if replicas < situation.min_replication or insync < situation.min_insync:
        return _not_durable(situation, f"{found}; {situation.min_replication} and {situation.min_insync} are wanted")
    unwritable = [name for name, fact in facts.items() if fact.in_sync < _min_insync(fact)]
    if unwritable:
        return failed(
            REPLICATION, f"too few replicas in sync to write to {_named(unwritable)}", "start the missing brokers"
        )
    behind = [name for name, fact in facts.items() if fact.in_sync < fact.replicas]
    if behind:
        return warning(REPLICATION, f"{found}; replicas behind in {_named(behind)}", "start the missing brokers")
    tight = [name for name, fact in facts.items() if fact.replicas > 1 and _min_insync(fact) >= fact.replicas]
    if tight:
        remedy = "set topics.min_insync_replicas below topics.replication_factor"
        return warning(REPLICATION, f"{found}: the loss of one broker stops writes to {_named(tight)}", remedy)
    return ok(REPLICATION, found)


def _min_insync(fact: TopicFacts) -> int:
    return int(fact.configs.get("min.insync.replicas", "1"))


def _not_durable(situation: Situation, found: str) -> Finding:
    if situation.is_local_broker:
        return warning(REPLICATION, f"{found}: the local stack has one broker", "for production only; --dev says so")
    remedy = (
        f"set topics.replication_factor={situation.min_replication}, topics.min_insync_replicas={situation.min_insync} "
        "and a higher topics.generation, then `headrace topics create`; where this is no production: --dev"
    )
    return failed(REPLICATION, found, remedy)


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
