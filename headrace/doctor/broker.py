"""The broker: reachable, also where it says that it is; its version. Behind it the checks that need a connection."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import msgspec
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError

from headrace.doctor import broker_configs, clock, topics
from headrace.doctor.base import Check, Finding, failed, find, find_all, ok, skipped, warning
from headrace.doctor.situation import Situation
from headrace.doctor.tcp import Address, parse_address, refusal
from headrace.doctor.wire import BrokerFeatures, read_features
from runtime.broker import broker_errors
from runtime.kafka import make_admin, running
from schemas.errors import SettingsError
from schemas.settings import KafkaSettings

BROKER, VERSION = "broker", "broker version"
NAMES = (BROKER, VERSION, clock.CLOCK, *broker_configs.NAMES, *topics.NAMES)

_REQUEST_TIMEOUT_MS = 5_000
_DEFAULT_PORT = 9092
_REMEDY = (
    "start a local one with `headrace up`, or correct kafka.bootstrap_servers, kafka.security_protocol and kafka.sasl_*"
)

# The first level of `metadata.version` of each release (Kafka's MetadataVersion.java, 4.4.0).
_RELEASES = (
    *((34, "4.5"), (31, "4.4"), (30, "4.3"), (28, "4.2"), (26, "4.1"), (22, "4.0"), (21, "3.9"), (20, "3.8")),
    *((15, "3.7"), (12, "3.6"), (9, "3.5"), (8, "3.4"), (1, "3.3 or older")),
)
_TESTED = "4.4"
# The first level of Kafka 4.0: older ones are not tested.
_MIN_LEVEL = 22
# What exactly one result for each request rests on.
_NEEDED_APIS = {
    22: "InitProducerId",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    28: "TxnOffsetCommit",
}


async def examine_broker(situation: Situation) -> list[Finding]:
    """All that can be found with a broker; without one, that nothing was looked at."""
    if not situation.settings.kafka.bootstrap_servers:
        return nothing("no broker set or running")
    async with AsyncExitStack() as resources:
        link = _Link(situation.settings.kafka, resources)
        reached = await find(Check(BROKER, link.connect, _REMEDY))
        if link.node_id is None:
            return [*reached, *nothing("the broker cannot be reached")[1:]]
        return [*reached, *await find_all(_checks(situation, link.admin, link.node_id))]


def nothing(why: str) -> list[Finding]:
    """The findings of this file, none of which was looked at."""
    return [skipped(name, why) for name in NAMES]


def _checks(situation: Situation, admin: Any, node_id: int) -> list[Check]:
    return [
        Check(VERSION, lambda: version(admin, node_id), f"run Apache Kafka {_TESTED}"),
        clock.check(admin, node_id),
        *broker_configs.checks(situation, admin, node_id),
        *topics.checks(situation, admin),
    ]


class _Link:
    """The way to the broker: an admin client that `resources` closes, and which broker to ask (None: not reached)."""

    def __init__(self, kafka: KafkaSettings, resources: AsyncExitStack) -> None:
        self._kafka = msgspec.structs.replace(
            kafka, request_timeout_ms=min(kafka.request_timeout_ms, _REQUEST_TIMEOUT_MS)
        )
        self._resources = resources
        self.admin: Any = None
        self.node_id: int | None = None

    async def connect(self) -> Finding:
        """A broker is reached twice: where we were told, and where it tells that it is (advertised.listeners)."""
        servers = (self._kafka.bootstrap_servers or "").split(",")
        asked = [parse_address(server, _DEFAULT_PORT) for server in servers if server.strip()]
        if not asked:
            raise SettingsError("kafka.bootstrap_servers names no address")
        silent = await _refusals(asked)
        if len(silent) == len(asked):
            return failed(BROKER, _listed(silent), _REMEDY)
        with broker_errors(self._kafka):
            self.admin = await self._resources.enter_async_context(running(make_admin(self._kafka)))
        # As the broker told them when it was asked first: any further question goes to these addresses already.
        brokers = sorted(self.admin._client.cluster.brokers(), key=lambda broker: broker.nodeId)
        if not brokers:
            return failed(BROKER, "it answers, but knows of no broker that serves", "see the broker's log")
        told = [Address(broker.host, broker.port) for broker in brokers]
        if lost := await _refusals(told):
            found = f"it answers, but sends clients to what cannot be reached from here: {_listed(lost)}"
            return failed(BROKER, found, "correct the brokers' advertised.listeners, or the name look-up here")
        self.node_id = brokers[0].nodeId
        return _judge_reach(told, silent)


def _judge_reach(told: Sequence[Address], silent: Mapping[Address, str]) -> Finding:
    if silent:
        return warning(BROKER, f"{len(told)} reached, but not {_listed(silent)}", "correct kafka.bootstrap_servers")
    return ok(BROKER, f"{len(told)} reached: {', '.join(map(str, told))}")


def _listed(reasons: Mapping[Address, str]) -> str:
    return "; ".join(f"{address}: {why}" for address, why in reasons.items())


async def _refusals(addresses: Sequence[Address]) -> dict[Address, str]:
    """Why each address that takes no connection does not."""
    reasons = await asyncio.gather(*(refusal(address) for address in addresses))
    return {address: why for address, why in zip(addresses, reasons, strict=True) if why is not None}


async def version(admin: Any, node_id: int) -> Finding:
    """Which Kafka the broker is. The protocol tells levels of features instead of a version."""
    try:
        return judge_version(await read_features(admin, node_id))
    except (NotImplementedError, IncompatibleBrokerVersion, KafkaError) as error:
        return failed(VERSION, f"it tells no features ({type(error).__name__})", f"run Apache Kafka {_TESTED}")


def judge_version(features: BrokerFeatures) -> Finding:
    """Whether it has transactions, and is a version that headrace is tested with."""
    missing = [name for key, name in _NEEDED_APIS.items() if key not in features.api_keys]
    if missing:
        return failed(VERSION, f"it has no transactions ({', '.join(missing)})", f"run Apache Kafka {_TESTED}")
    level = features.levels.get("metadata.version")
    if level is None:
        found = "it has transactions, but does not tell a version: not Apache Kafka, or one with ZooKeeper"
        return warning(VERSION, found, f"headrace is tested with Apache Kafka {_TESTED}")
    release = next((name for first, name in _RELEASES if level >= first), "?")
    if level < _MIN_LEVEL:
        return warning(VERSION, f"Kafka {release}", f"headrace is tested with Apache Kafka {_TESTED}")
    newest = level > _RELEASES[0][0]
    return ok(VERSION, f"Kafka {release}{' or newer' if newest else ''} (metadata.version {level})")
