"""What `headrace doctor` makes of what a broker tells: addresses, version, clock, configs, topics."""

import asyncio
from collections.abc import Mapping

import pytest

from headrace.doctor.broker import judge_version
from headrace.doctor.broker_configs import judge_internal, judge_limits
from headrace.doctor.clock import Skew
from headrace.doctor.clock import judge as judge_clock
from headrace.doctor.situation import Situation
from headrace.doctor.tcp import Address, parse_address, refusal
from headrace.doctor.topics import (
    TopicFacts,
    judge_configs,
    judge_existence,
    judge_partitions,
    judge_replication,
    specs_of,
)
from headrace.doctor.wire import BrokerFeatures
from runtime.config import LoadedSettings, load_settings
from schemas.errors import SettingsError

BROKER_SET = "kafka.bootstrap_servers=127.0.0.1:1"
TRANSACTION_APIS = frozenset({22, 24, 25, 26, 28})


def situation(*overrides: str, is_dev: bool = False) -> Situation:
    return Situation(load_settings(None, {}, overrides), is_dev)


def local_situation() -> Situation:
    """As with the broker of a running local stack."""
    loaded = load_settings(None, {})
    return Situation(
        LoadedSettings(loaded.settings, {**loaded.sources, "kafka.bootstrap_servers": "local stack in data"})
    )


# The broker


@pytest.mark.parametrize(
    ("apis", "levels", "status", "text"),
    [
        (TRANSACTION_APIS, {"metadata.version": 33}, "ok", "Kafka 4.4"),
        (TRANSACTION_APIS, {"metadata.version": 31}, "ok", "Kafka 4.4"),
        (TRANSACTION_APIS, {"metadata.version": 22}, "ok", "Kafka 4.0"),
        (TRANSACTION_APIS, {"metadata.version": 99}, "ok", "or newer"),
        (TRANSACTION_APIS, {"metadata.version": 21}, "warning", "Kafka 3.9"),
        (TRANSACTION_APIS, {"metadata.version": 3}, "warning", "Kafka 3.3 or older"),
        (TRANSACTION_APIS, {}, "warning", "does not tell a version"),
        (TRANSACTION_APIS - {26}, {"metadata.version": 33}, "failed", "EndTxn"),
    ],
)
def test_a_broker_s_version_follows_from_its_features(
    apis: frozenset[int], levels: dict[str, int], status: str, text: str
) -> None:
    finding = judge_version(BrokerFeatures(apis, levels))
    assert finding.status == status
    assert text in finding.found


@pytest.mark.parametrize(
    ("ahead_ms", "uncertainty_ms", "status"),
    [(20, 1, "ok"), (-1500, 600, "ok"), (1500, 10, "warning"), (-1500, 10, "warning"), (-61_000, 10, "failed")],
)
def test_clocks_are_apart_only_by_what_the_journey_does_not_explain(
    ahead_ms: float, uncertainty_ms: float, status: str
) -> None:
    finding = judge_clock(Skew(ahead_ms, uncertainty_ms))
    assert finding.status == status
    assert ("ahead of" if ahead_ms > 0 else "behind") in finding.found


DURABLE = {
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "offsets.topic.replication.factor": "3",
}
SINGLE = dict.fromkeys(DURABLE, "1")


@pytest.mark.parametrize(
    ("configs", "status", "remedy"),
    [
        ({}, "ok", ""),
        ({"auto.create.topics.enable": "true"}, "warning", "auto.create.topics.enable=false"),
        ({"group.min.session.timeout.ms": "30000"}, "failed", "kafka.session_timeout_ms"),
        ({"group.max.session.timeout.ms": "6000"}, "failed", "kafka.session_timeout_ms"),
        ({"transaction.max.timeout.ms": "1000"}, "failed", "kafka.transaction_timeout_ms"),
        ({"message.max.bytes": "1000"}, "failed", "message.max.bytes"),
    ],
)
def test_a_broker_must_take_what_our_clients_send(configs: dict[str, str], status: str, remedy: str) -> None:
    finding = judge_limits(situation(), configs)
    assert finding.status == status
    assert remedy in (finding.remedy or "")


def test_transactions_must_be_as_durable_as_topics_outside_dev() -> None:
    assert judge_internal(situation(BROKER_SET), DURABLE).status == "ok"
    assert judge_internal(situation(BROKER_SET), SINGLE).status == "failed"
    assert judge_internal(situation(BROKER_SET, is_dev=True), SINGLE).status == "ok"
    assert judge_internal(local_situation(), SINGLE).status == "warning"


# Topics


def facts(
    of: Situation,
    replicas: int = 3,
    insync: str = "2",
    in_sync: int | None = None,
    configs: Mapping[str, str] | None = None,
) -> dict[str, TopicFacts]:
    return {
        spec.name: TopicFacts(
            partitions=spec.partitions,
            leaderless=0,
            replicas=replicas,
            in_sync=replicas if in_sync is None else in_sync,
            configs={**spec.configs, "min.insync.replicas": insync, **(configs or {})},
        )
        for spec in specs_of(of)
    }


def test_topics_as_the_registry_says_are_well() -> None:
    of = situation(BROKER_SET)
    specs, there = specs_of(of), facts(of)
    assert {
        finding.status
        for finding in (
            judge_existence(specs, there),
            judge_partitions(specs, there),
            judge_configs(of, specs, there),
            judge_replication(of, there),
        )
    } == {"ok"}


def test_missing_topics_are_named_with_the_command_and_nothing_else_is_said_of_them() -> None:
    of = situation(BROKER_SET)
    specs = specs_of(of)
    finding = judge_existence(specs, {})
    assert (finding.status, finding.remedy) == ("failed", "headrace topics create")
    assert f"{len(specs)} of {len(specs)} are missing: {specs[0].name}" in finding.found
    rest = (judge_partitions(specs, {}), judge_configs(of, specs, {}), judge_replication(of, {}))
    assert {finding.status for finding in rest} == {"skipped"}


def test_a_partition_without_a_leader_is_a_failure() -> None:
    of = situation(BROKER_SET)
    there = facts(of)
    there[specs_of(of)[0].name] = there[specs_of(of)[0].name]._replace(leaderless=1)
    assert judge_existence(specs_of(of), there).status == "failed"


def test_a_wrong_number_of_partitions_is_a_failure_and_one_for_all_can_simply_be_set() -> None:
    of = situation(BROKER_SET)
    specs = specs_of(of)
    there = {name: fact._replace(partitions=12) for name, fact in facts(of).items()}
    finding = judge_partitions(specs, there)
    assert (finding.status, finding.remedy) == ("failed", "set topics.partitions=12")
    there[specs[0].name] = there[specs[0].name]._replace(partitions=6)
    assert "topics.generation" in str(judge_partitions(specs, there).remedy)


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("message.timestamp.type", "CreateTime", "message.timestamp.type=LogAppendTime"),
        ("cleanup.policy", "compact,delete", "cleanup.policy=delete"),
        ("retention.ms", "1000", "retention.ms=604800000"),
    ],
)
def test_a_config_that_would_break_a_promise_is_a_failure_with_the_command(name: str, value: str, remedy: str) -> None:
    of = situation(BROKER_SET)
    finding = judge_configs(of, specs_of(of), facts(of, configs={name: value}))
    assert finding.status == "failed"
    assert remedy in finding.found
    assert str(finding.remedy).startswith("kafka-configs.sh --bootstrap-server 127.0.0.1:1 --alter")


@pytest.mark.parametrize("kept_ms", ["-1", str(24 * 3_600_000), str(10**12)])
def test_records_may_be_kept_for_longer_than_the_registry_says(kept_ms: str) -> None:
    of = situation(BROKER_SET)
    assert judge_configs(of, specs_of(of), facts(of, configs={"retention.ms": kept_ms})).status == "ok"


def test_records_must_be_kept_for_as_long_as_a_request_may_be_old() -> None:
    of = situation(BROKER_SET, "gate.max_age_s=1000000")
    assert judge_configs(of, specs_of(of), facts(of, configs={"retention.ms": "999999999"})).status == "failed"
    assert judge_configs(of, specs_of(of), facts(of, configs={"retention.ms": "1000000000"})).status == "ok"


@pytest.mark.parametrize(
    ("replicas", "insync", "in_sync", "status"),
    [
        (3, "2", 3, "ok"),
        (5, "3", 5, "ok"),
        (3, "2", 2, "warning"),  # a replica is behind
        (3, "3", 3, "warning"),  # the loss of one stops writes
        (3, "2", 1, "failed"),  # nothing can be written
        (2, "2", 2, "failed"),
        (3, "1", 3, "failed"),
        (1, "1", 1, "failed"),
    ],
)
def test_the_loss_of_a_broker_must_lose_and_stop_nothing(replicas: int, insync: str, in_sync: int, status: str) -> None:
    of = situation(BROKER_SET)
    assert judge_replication(of, facts(of, replicas, insync, in_sync)).status == status


def test_one_replica_is_enough_with_dev_and_warned_of_on_the_local_stack() -> None:
    dev, local = situation(BROKER_SET, is_dev=True), local_situation()
    assert judge_replication(dev, facts(dev, 1, "1")).status == "ok"
    assert judge_replication(local, facts(local, 1, "1")).status == "warning"


def test_dev_still_asks_for_what_is_set() -> None:
    of = situation(BROKER_SET, "topics.replication_factor=2", is_dev=True)
    assert judge_replication(of, facts(of, 1, "1")).status == "failed"


# Addresses


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("host:1", ("host", 1), "host:1"),
        ("host", ("host", 9), "host:9"),
        (" 10.0.0.1:65535 ", ("10.0.0.1", 65535), "10.0.0.1:65535"),
        ("[::1]:5", ("::1", 5), "[::1]:5"),
        ("[::1]", ("::1", 9), "[::1]:9"),
    ],
)
def test_addresses_are_hosts_with_or_without_a_port(text: str, address: tuple[str, int], shown: str) -> None:
    assert parse_address(text, 9) == address
    assert str(Address(*address)) == shown


@pytest.mark.parametrize("text", ["", ":1", "host:", "host:x", "http://host:1", "host:70000", "host:1/path"])
def test_other_forms_are_refused_with_the_right_one(text: str) -> None:
    with pytest.raises(SettingsError, match="write HOST:PORT"):
        parse_address(text, 9)


async def test_why_an_address_takes_no_connection_is_said() -> None:
    assert await refusal(Address("127.0.0.1", 1)) == "connection refused"
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        assert await refusal(Address("127.0.0.1", server.sockets[0].getsockname()[1])) is None
