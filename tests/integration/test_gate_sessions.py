"""Sessions through a real gate: one turn at a time, each on the one before, whatever the turns and the storage do."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from consumers.gate.role import GateRole
from headrace.local.background import BackgroundStack
from runtime.storage import ObjectStore
from schemas.codec import RESULT, SESSION_TURN
from schemas.envelope import Status
from schemas.results import DuplicateOf
from schemas.sessions import SessionState, SessionTurn
from schemas.settings import GateSettings, KafkaSettings, Settings, TopicsSettings
from schemas.turns import BaseTurn
from tests.consumers.gate.builders import HASHES, chat, result_of
from tests.consumers.gate.door import Door
from tests.consumers.gate.live import GateProcess, Outside, gate_inside

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(stack: BackgroundStack, namespace: str) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=stack.bootstrap_servers, session_timeout_ms=6_000),
        storage=stack.s3,
        topics=TopicsSettings(namespace=namespace, partitions=3),
        gate=GateSettings(max_parked_turns=2),
    )


@pytest.fixture
async def outside(settings: Settings) -> AsyncIterator[Outside]:
    async with Outside(settings) as running:
        yield running


@pytest.fixture
async def gate(settings: Settings, outside: Outside) -> AsyncIterator[GateRole]:
    async with gate_inside(settings) as running:
        yield running


async def object_at(settings: Settings, key: str) -> SessionTurn:
    objects = ObjectStore(settings.storage)
    try:
        return SESSION_TURN.decode(await objects.get(key))
    finally:
        objects.close()


async def test_a_second_turn_waits_for_the_result_of_the_first_and_is_based_on_its_object(
    gate: GateRole, outside: Outside, settings: Settings
) -> None:
    await outside.send(chat("one", id="r1", session="s1", tenant="acme"))
    await outside.send(chat("two", id="r2", session="s1", tenant="acme"))
    first = await outside.turn("r1")
    assert (first.base, first.envelope.turn) == (None, 1)
    # The gate has decided on the second by the time that a later request of the partition is through.
    await outside.send(chat(id=outside.id_in(outside.partition_of("s1"))))
    await outside.turn(outside.id_in(outside.partition_of("s1")))
    assert [turn.envelope.request_id for turn in outside.turns if turn.envelope.session] == ["r1"]

    await outside.answer(first)
    second = await outside.turn("r2")
    key = f"{settings.topics.namespace}/sessions/acme/s1/000001-r1.json"
    assert second.base == BaseTurn(turn=1, object=key)
    assert second.envelope.turn == 2
    stored = await object_at(settings, key)
    assert stored.token_ids == [0, 1, 2, 3, 7, 8]
    assert [message.text for message in stored.messages] == ["one", "answer to r1"]
    assert (stored.tenant, stored.session, stored.hashes, stored.parent) == ("acme", "s1", HASHES, None)

    await outside.answer(second, base=6)
    await outside.send(chat("three", id="r3", session="s1", tenant="acme"))
    third = await outside.turn("r3")
    assert third.base is not None
    stored = await object_at(settings, third.base.object)
    assert (stored.turn, stored.parent, stored.token_ids) == (2, key, [6, 7, 8, 9, 7, 8])


@pytest.mark.parametrize("status", ["failed", "cancelled", "expired"])
async def test_a_turn_that_does_not_complete_releases_the_next_without_advancing(
    gate: GateRole, outside: Outside, status: Status
) -> None:
    await outside.send(chat(id="r1", session="s1"))
    await outside.send(chat(id="r2", session="s1"))
    await outside.answer(await outside.turn("r1"), status=status)
    second = await outside.turn("r2")
    assert (second.base, second.envelope.turn) == (None, 1)
    await outside.wait_for(lambda: b"default/s1#0" not in outside.session_records())
    assert outside.session_records()[b"default/s1"] == SessionState(
        session="s1", tenant="default", running="r2", last_request="r1", outcome=status
    )


async def test_turns_over_the_limit_are_refused_and_the_others_go_on(gate: GateRole, outside: Outside) -> None:
    for request_id in ["r1", "r2", "r3", "r4"]:
        await outside.send(chat(id=request_id, session="s1"))
    refused = await outside.result("r4")
    assert refused.error is not None
    assert (refused.status, refused.error.code, refused.session) == ("failed", "session_unavailable", "s1")
    for request_id in ["r1", "r2", "r3"]:
        await outside.answer(await outside.turn(request_id))
    assert [turn.envelope.request_id for turn in outside.turns] == ["r1", "r2", "r3"]


async def test_one_session_id_of_two_tenants_is_two_sessions(gate: GateRole, outside: Outside) -> None:
    await outside.send(chat(id="r1", session="s1", tenant="acme"))
    await outside.send(chat(id="r2", session="s1", tenant="zeta"))
    await outside.answer(await outside.turn("r1"))
    assert (await outside.turn("r2")).base is None
    await outside.send(chat(id="r3", session="s1", tenant="acme"))
    base = (await outside.turn("r3")).base
    assert base is not None
    assert "/acme/s1/" in base.object


async def test_results_that_are_not_of_the_running_turn_change_nothing(gate: GateRole, outside: Outside) -> None:
    await outside.send(chat(id="r1", session="s1"))
    first = await outside.turn("r1")
    stray = msgspec.structs.replace(first, envelope=msgspec.structs.replace(first.envelope, request_id="r0"))
    await outside.send_result(DuplicateOf(request_id="r1"), first)
    await outside.answer(stray)
    await outside.answer(first)
    await outside.answer(first, status="failed")
    await outside.answer(stray, status="failed")
    await outside.send(chat(id="r2", session="s1"))
    second = await outside.turn("r2")
    assert second.base is not None
    assert (second.base.turn, second.envelope.turn) == (1, 2)


async def test_what_cannot_be_read_on_results_holds_nothing_up(gate: GateRole, outside: Outside) -> None:
    await outside.send(chat(id="r1", session="s1"))
    first = await outside.turn("r1")
    for value in (b"\xff", b"", b"{}", b'{"schema": "poem/1"}', None):
        partition = outside.partition_of("s1")
        await outside.send_raw(value, key=b"s1", partition=partition, topic=outside.names.results)
    await outside.answer(first)
    await outside.send(chat(id="r2", session="s1"))
    assert (await outside.turn("r2")).base is not None


async def test_repeats_of_a_turn_are_not_forwarded_again(gate: GateRole, outside: Outside) -> None:
    await outside.send(chat(id="r1", session="s1"))
    first = await outside.turn("r1")
    await outside.send(chat(id="r1", session="s1"))
    await outside.send(chat(id="r1", session="s1", temperature=99))
    await outside.answer(first)
    await outside.send(chat(id="r2", session="s1"))
    await outside.turn("r2")
    await outside.send(chat(id="r1", session="s1"))
    await outside.wait_for(
        lambda: any(isinstance(RESULT.decode(one.value), DuplicateOf) for one in outside.of(outside.names.results))
    )
    assert [turn.envelope.request_id for turn in outside.turns] == ["r1", "r2"]
    assert len(outside.results_of("r1")) == 1


async def test_a_parked_turn_that_expires_is_ended_at_once_and_the_session_goes_on(
    gate: GateRole, outside: Outside
) -> None:
    await outside.send(chat(id="r1", session="s1"))
    await outside.send(chat(id="r2", session="s1", ttl_s=0.5))
    await outside.send(chat(id="r3", session="s1"))
    first = await outside.turn("r1")
    assert (await outside.result("r2")).status == "expired"
    await outside.answer(first)
    await outside.turn("r3")
    assert [turn.envelope.request_id for turn in outside.turns] == ["r1", "r3"]


async def test_turns_of_both_lanes_are_in_one_order(gate: GateRole, outside: Outside) -> None:
    await outside.send(chat(id="r1", session="s1"))
    first = await outside.turn("r1")
    await outside.send(chat(id="r2", session="s1"), topic=outside.names.requests("bulk"))
    await outside.wait_for(lambda: b"default/s1#0" in outside.session_records())
    await outside.send(chat(id="r3", session="s1"))
    await outside.wait_for(lambda: b"default/s1#1" in outside.session_records())
    await outside.answer(first)
    await outside.answer(await outside.turn("r2"))
    await outside.turn("r3")
    lanes = {one.key: one.topic for one in outside.seen if one.topic.endswith("turns.bulk")}
    assert lanes == {b"s1": outside.names.turns("bulk")}


async def test_while_storage_is_away_only_the_sessions_that_need_it_wait(settings: Settings, outside: Outside) -> None:
    async with Door(str(settings.storage.endpoint)) as door:
        behind = msgspec.structs.replace(settings.storage, endpoint=door.endpoint, timeout_s=1.0)
        async with GateProcess(msgspec.structs.replace(settings, storage=behind)) as gate:
            await outside.send(chat(id="a1", session="s1"))
            waiting = await outside.turn("a1")
            door.shut()
            await outside.answer(waiting)
            await gate.logged("session_waits_for_storage")
            await outside.send(chat(id="a2", session="s1"))
            # Everything else of the very same partition goes on, another session's turns too.
            other = "acme"
            await outside.send(chat(id="b1", session="s1", tenant=other))
            await outside.answer(await outside.turn("b1"), status="failed")
            await outside.send(chat(id="b2", session="s1", tenant=other))
            await outside.turn("b2")
            await outside.send(chat(id=outside.id_in(outside.partition_of("s1"))))
            await outside.turn(outside.id_in(outside.partition_of("s1")))
            assert "a2" not in {turn.envelope.request_id for turn in outside.turns}
            door.open()
            base = (await outside.turn("a2")).base
            assert base is not None
            assert (await object_at(settings, base.object)).request_id == "a1"
            assert await gate.terminate() == 0


async def test_a_completed_result_without_an_answer_does_not_block_its_session(
    gate: GateRole, outside: Outside
) -> None:
    await outside.send(chat(id="r1", session="s1"))
    first = await outside.turn("r1")
    result = result_of(first)
    result.choices = []
    await outside.send_result(result, first)
    await outside.send(chat(id="r2", session="s1"))
    assert (await outside.turn("r2")).base is None
    assert outside.state_of("s1").outcome == "failed"
