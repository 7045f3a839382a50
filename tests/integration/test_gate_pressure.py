"""A gate in this process, to look at what no record tells: what is paused, and what /readyz says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from aiokafka import TopicPartition

from consumers.gate import ownership
from consumers.gate.role import GateRole
from headrace.local.background import BackgroundStack
from schemas.settings import KafkaSettings, Settings, TopicsSettings
from tests.consumers.gate.builders import chat
from tests.consumers.gate.door import Door
from tests.consumers.gate.live import Outside

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


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[GateRole]:
    role = GateRole(settings)
    await role.start()
    run = asyncio.create_task(role.run())
    try:
        yield role
    finally:
        await role.stop()
        await run


async def test_a_topic_with_too_much_undone_is_paused_and_resumed_and_the_others_go_on(
    settings: Settings, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "MAX_OPEN", 4)
    number = outside.partition_of("s1")
    tenants = [f"tenant{n}" for n in range(9)]
    async with Door(str(settings.storage.endpoint)) as door:
        behind = msgspec.structs.replace(settings.storage, endpoint=door.endpoint, timeout_s=1.0)
        async with running(msgspec.structs.replace(settings, storage=behind)) as role:
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
    async with running(settings) as role:
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
