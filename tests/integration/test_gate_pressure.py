"""A gate in this process, to look at what no record tells: what is paused, and what /readyz says."""

from collections.abc import AsyncIterator

import msgspec
import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord
from prometheus_client import REGISTRY

from consumers.gate import partition as partition_module
from consumers.gate.admission import rules_of
from consumers.gate.partition import Partition, Shared
from consumers.gate.role import GateRole
from consumers.gate.takeover import take_over
from consumers.renewing import RenewingProducer
from headrace.local.background import BackgroundStack
from runtime.clock import BrokerClock
from runtime.kafka import make_consumer
from runtime.storage import ObjectStore
from schemas.settings import KafkaSettings, Settings, TopicsSettings
from tests.consumers.gate.builders import chat
from tests.consumers.gate.door import Door
from tests.consumers.gate.live import Outside, Seen, gate_inside

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(stack: BackgroundStack, namespace: str) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=stack.bootstrap_servers),
        storage=stack.s3,
        topics=TopicsSettings(namespace=namespace, partitions=2),
    )


@pytest.fixture
async def outside(settings: Settings) -> AsyncIterator[Outside]:
    async with Outside(settings) as running:
        yield running


async def test_a_topic_with_too_much_undone_is_paused_and_resumed_and_the_others_go_on(
    settings: Settings, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_module, "MAX_OPEN", 4)
    number = outside.partition_of("s1")
    tenants = [f"tenant{n}" for n in range(9)]
    async with Door(str(settings.storage.endpoint)) as door:
        behind = msgspec.structs.replace(settings.storage, endpoint=door.endpoint, timeout_s=1.0)
        async with gate_inside(msgspec.structs.replace(settings, storage=behind)) as role:
            for tenant in tenants:
                await outside.send(chat(id=tenant, session="s1", tenant=tenant))
            turns = [await outside.turn(tenant) for tenant in tenants]
            door.shut()
            for turn in turns:
                await outside.answer(turn)
            results = TopicPartition(outside.names.results, number)
            while role.paused != {results}:
                await outside.send(chat(id=(request_id := outside.id_in(number))))
                await outside.turn(request_id)
            door.open()
            for tenant in tenants:
                await outside.wait_for(lambda tenant=tenant: outside.state_of("s1", tenant).turn == 1)  # type: ignore[misc]
            while role.paused:
                await outside.send(chat(id=(request_id := outside.id_in(number))))
                await outside.turn(request_id)


async def test_a_gate_is_ready_when_its_partitions_are_at_work(settings: Settings, outside: Outside) -> None:
    assert not GateRole(settings).health().is_ready
    async with gate_inside(settings) as role:
        await outside.send(chat(id="r1"))
        await outside.turn("r1")
        health = role.health()
        assert health.is_alive
        assert "partition" in health.detail
        for number in range(2):
            await outside.send(chat(id=outside.id_in(number)))
            await outside.turn(outside.id_in(number))
        assert role.health().is_ready
        assert "[0, 1]" in role.health().detail


async def test_a_gate_can_be_stopped_before_it_runs(settings: Settings, outside: Outside) -> None:
    role = GateRole(settings)
    await role.start()
    await role.stop()
    await role.run()
    assert await outside.lag() == 0


async def test_a_record_that_is_delivered_again_is_dropped(settings: Settings, outside: Outside) -> None:
    """Kept partitions are delivered from the committed offset again after an eager rebalance."""
    number, names = 0, outside.names
    request_id = outside.id_in(number)
    await outside.send(chat(id=request_id))
    await outside.send(chat(id="s-1", session=request_id))
    producer, consumer = RenewingProducer(settings.kafka), make_consumer(settings.kafka, group=names.gate_group)
    await producer.start()
    await consumer.start()
    shared = Shared(names, rules_of(settings), 2, producer, ObjectStore(settings.storage), BrokerClock())
    taken = await take_over(number, kafka=settings.kafka, names=names, consumer=consumer)
    partition = Partition(number, taken, shared)
    partition.start()
    records = [as_delivered(one) for one in await outside.records_of(names.requests(), number)]
    for record in [*records, *records, records[1], records[0]]:
        partition.offer(record)
    await outside.turn(request_id)
    await outside.turn("s-1")
    assert partition.next_offsets[TopicPartition(names.requests(), number)] == 2
    await partition.stop()
    await consumer.stop()
    await producer.stop()
    assert len(outside.turns) == 2
    assert await outside.lag() == 0


def as_delivered(seen: Seen) -> "ConsumerRecord[bytes, bytes]":
    size = len(seen.value or b"")
    return ConsumerRecord(*seen[:3], seen.timestamp_ms, 1, seen.key, seen.value, None, 0, size, tuple(seen.headers))


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"headrace:{name}", labels) or 0.0


async def test_what_the_gate_does_is_counted(settings: Settings, outside: Outside) -> None:
    counted = [
        ("records_consumed_total", {"topic": outside.names.requests("bulk")}, 1),
        ("records_refused_total", {"stage": "gate", "code": "malformed_record"}, 1),
        ("dead_letters_total", {"stage": "gate"}, 1),
        ("requests_ended_total", {"status": "expired"}, 1),
        ("partition_takeovers_total", {}, 2),
    ]
    before = [sample(name, **labels) for name, labels, _ in counted]
    async with gate_inside(settings):
        await outside.send(chat(id="plain"))
        await outside.send(chat(id="late", deadline_ms=1), topic=outside.names.requests("bulk"))
        place = await outside.send_raw(b"{", key=b"k", partition=0)
        for request_id in ("r1", "r2", "r3"):
            await outside.send(chat(id=request_id, session="s1"))
        await outside.turn("plain")
        await outside.turn("r1")
        await outside.result("late")
        await outside.result(place)
        await outside.wait_for(lambda: len(outside.session_records()) == 3)
        while sample("session_turns_parked") != 2:
            await outside.send(chat(id="more"))
    after = [sample(name, **labels) for name, labels, _ in counted]
    assert [(one[0], new - old) for one, old, new in zip(counted, before, after, strict=True)] == [
        (name, number) for name, _, number in counted
    ]
