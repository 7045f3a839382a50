"""Cancels at a real gate: parked turns end at once, the running one is its worker's, sessions go on."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from consumers.gate.role import GateRole
from headrace.local.background import BackgroundStack
from schemas.settings import KafkaSettings, Settings, TopicsSettings
from tests.consumers.cancelling import GARBAGE, written
from tests.consumers.gate.builders import chat
from tests.consumers.gate.live import GateProcess, Outside, gate_inside
from tests.consumers.worker.live import until

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(stack: BackgroundStack, namespace: str) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=stack.bootstrap_servers, session_timeout_ms=6_000),
        storage=stack.s3,
        topics=TopicsSettings(namespace=namespace, partitions=3),
    )


@pytest.fixture
async def outside(settings: Settings) -> AsyncIterator[Outside]:
    async with Outside(settings) as running:
        yield running


@pytest.fixture
async def gate(settings: Settings, outside: Outside) -> AsyncIterator[GateRole]:
    async with gate_inside(settings) as running:
        yield running


async def cancel(outside: Outside, request_id: str, *, partition: int | None = None, **fields: Any) -> None:
    key, value = written(request_id, **fields)
    place = outside.partition_of(key.decode()) if partition is None else partition
    await outside.send_raw(value, key=key, partition=place, topic=outside.names.control)


async def test_a_parked_turn_ends_at_once_and_the_next_follows_the_running_one(
    gate: GateRole, outside: Outside
) -> None:
    for request_id in ("r1", "r2", "r3"):
        await outside.send(chat(request_id, id=request_id, session="s1"))
    first = await outside.turn("r1")
    await cancel(outside, "r2", session="s1", partition=(outside.partition_of("s1") + 1) % 3)
    result = await outside.result("r2")
    assert (result.status, result.session, result.choices) == ("cancelled", "s1", [])
    assert outside.state_of("s1").running == "r1"
    await outside.answer(first)
    third = await outside.turn("r3")
    assert third.base is not None
    assert [turn.envelope.request_id for turn in outside.turns] == ["r1", "r3"]
    assert len(outside.results_of("r2")) == 1


async def test_a_running_turn_that_was_cancelled_does_not_count_and_the_next_goes_on(
    gate: GateRole, outside: Outside
) -> None:
    await outside.send(chat("one", id="r1", session="s1"))
    await outside.send(chat("two", id="r2", session="s1"))
    first = await outside.turn("r1")
    await cancel(outside, "r1", session="s1")
    # The gate leaves it to the worker, which ends it.
    await outside.answer(first, status="cancelled")
    second = await outside.turn("r2")
    assert (second.base, second.envelope.turn) == (None, 1)
    await outside.wait_for(lambda: outside.state_of("s1").running == "r2")
    assert (outside.state_of("s1").turn, outside.state_of("s1").outcome) == (0, "cancelled")
    assert [one.status for one in outside.results_of("r1")] == ["cancelled"]


async def test_a_turn_that_comes_after_its_cancel_is_not_passed_on(gate: GateRole, outside: Outside) -> None:
    await cancel(outside, "r1", session="s1")
    control = gate._control
    assert control is not None
    await until(lambda: len(control.book) == 1)
    await outside.send(chat("one", id="r1", session="s1"))
    assert (await outside.result("r1")).status == "cancelled"
    await outside.send(chat("two", id="r2", session="s1"))
    second = await outside.turn("r2")
    assert (second.base, second.envelope.turn) == (None, 1)
    assert "r1" not in [turn.envelope.request_id for turn in outside.turns]


async def test_others_with_the_same_id_are_not_touched(gate: GateRole, outside: Outside) -> None:
    for tenant in ("default", "acme"):
        await outside.send(chat("one", id="r1", session="s1", tenant=tenant))
        await outside.send(chat("two", id="r2", session="s1", tenant=tenant))
    await cancel(outside, "r2", session="s2")
    await cancel(outside, "r2")
    for value in GARBAGE:
        await outside.send_raw(value, key=b"k", partition=0, topic=outside.names.control)
    await cancel(outside, "r2", session="s1", tenant="acme")
    await outside.result("r2")
    assert [(one.tenant, one.status) for one in outside.results_of("r2")] == [("acme", "cancelled")]


async def test_a_plain_request_is_passed_on_also_when_it_was_cancelled(gate: GateRole, outside: Outside) -> None:
    """Only workers know whether it was passed on before: two answers would be one too many."""
    await cancel(outside, "r1")
    await outside.send(chat("one", id="r1"))
    assert (await outside.turn("r1")).envelope.request_id == "r1"


async def test_a_turn_that_was_cancelled_while_there_was_no_gate_is_ended_by_the_next(
    settings: Settings, outside: Outside
) -> None:
    async with GateProcess(settings) as first:
        for request_id in ("r1", "r2", "r3"):
            await outside.send(chat(request_id, id=request_id, session="s1"))
        turn = await outside.turn("r1")
        await outside.wait_for(lambda: len(outside.session_records()) == 3)
        await first.kill()
    await cancel(outside, "r2", session="s1", partition=0)
    await outside.answer(turn)
    async with GateProcess(settings):
        assert (await outside.result("r2")).status == "cancelled"
        assert (await outside.turn("r3")).base is not None
    assert [one.envelope.request_id for one in outside.turns] == ["r1", "r3"]
    assert len(outside.results_of("r2")) == 1
