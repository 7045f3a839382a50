"""The broker's own configs: limits that our clients must keep to, and how durable transactions and offsets are."""

from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from headrace.doctor.base import Check, Finding, failed, ok, warning
from headrace.doctor.configs import read_configs
from headrace.doctor.situation import Situation

LIMITS, INTERNAL = "broker limits", "transaction log"
NAMES = (LIMITS, INTERNAL)

# A record of ours holds at most this much (design: larger values go to object storage).
_MAX_RECORD_BYTES = 512 * 1024
_ASKED = (
    *("auto.create.topics.enable", "message.max.bytes", "transaction.max.timeout.ms"),
    *("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    *("transaction.state.log.replication.factor", "transaction.state.log.min.isr", "offsets.topic.replication.factor"),
)
_REMEDY = "let the user of kafka.sasl_username describe the cluster's configs"


def checks(situation: Situation, admin: Any, node_id: int) -> list[Check]:
    """All checks of this file, as one look at one broker."""

    async def examine() -> Sequence[Finding]:
        resource = ConfigResource(ConfigResourceType.BROKER, str(node_id), dict.fromkeys(_ASKED))
        configs = (await read_configs(admin, [resource]))[str(node_id)]
        return [judge_limits(situation, configs), judge_internal(situation, configs)]

    return [Check(LIMITS, examine, _REMEDY)]


def judge_limits(situation: Situation, configs: Mapping[str, str]) -> Finding:
    """Whether the broker takes our clients as they are set. A config that it does not tell is taken as right."""
    kafka = situation.settings.kafka
    limits = {name: int(value) for name, value in configs.items() if value.isdigit()}
    faults, remedies = [], []
    low, high = limits.get("group.min.session.timeout.ms", 0), limits.get("group.max.session.timeout.ms")
    if kafka.session_timeout_ms < low or (high is not None and kafka.session_timeout_ms > high):
        faults.append(f"it takes session timeouts from {low} to {high} ms, and ours is {kafka.session_timeout_ms}")
        remedies.append(f"set kafka.session_timeout_ms between {low} and {high}")
    longest = limits.get("transaction.max.timeout.ms", kafka.transaction_timeout_ms)
    if kafka.transaction_timeout_ms > longest:
        faults.append(f"it takes transactions of {longest} ms, and ours may last {kafka.transaction_timeout_ms}")
        remedies.append(f"set kafka.transaction_timeout_ms to {longest} or less")
    if limits.get("message.max.bytes", _MAX_RECORD_BYTES) < _MAX_RECORD_BYTES:
        faults.append(
            f"it takes records of {limits['message.max.bytes']} bytes, and ours hold up to {_MAX_RECORD_BYTES}"
        )
        remedies.append("raise message.max.bytes on the brokers to its default, 1048588")
    if faults:
        return failed(LIMITS, "; ".join(faults), "; ".join(remedies))
    if configs.get("auto.create.topics.enable") == "true":
        found = "it creates topics that somebody only mentions, with its own number of partitions"
        return warning(LIMITS, found, "set auto.create.topics.enable=false on the brokers")
    return ok(LIMITS, "record size, session and transaction timeouts fit; topics are not created by accident")


def judge_internal(situation: Situation, configs: Mapping[str, str]) -> Finding:
    """Whether transactions and offsets survive the loss of a broker as our topics do."""
    wanted = {
        "transaction.state.log.replication.factor": situation.min_replication,
        "transaction.state.log.min.isr": situation.min_insync,
        "offsets.topic.replication.factor": situation.min_replication,
    }
    found = ", ".join(f"{name}={configs.get(name, '?')}" for name in wanted)
    low = {
        name: least for name, least in wanted.items() if configs.get(name, "").isdigit() and int(configs[name]) < least
    }
    if not low:
        return ok(INTERNAL, found)
    remedy = "on the brokers, before the first start: " + ", ".join(f"{name}={least}" for name, least in low.items())
    if situation.is_local_broker:
        return warning(INTERNAL, f"{found}: the local stack has one broker", "for production only; --dev says so")
    return failed(INTERNAL, found, f"{remedy}; where this is no production: --dev")
