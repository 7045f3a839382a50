"""Requests and results that do not fit a record, through a real gate that dies, beside a storage that goes away."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

import msgspec
import pytest

from consumers.gate.collector import Collector, kept_ms
from consumers.gate.role import GateRole
from headrace.local.background import BackgroundStack
from runtime.clock import BrokerClock
from runtime.storage import ObjectStore
from schemas.claims import claim_for, claims_prefix, fits
from schemas.codec import RESULT, SESSION_TURN, TURN
from schemas.contents import RESULT_CONTENTS
from schemas.settings import GateSettings, KafkaSettings, Settings, TopicsSettings
from tests.consumers.gate.builders import chat, result_of
from tests.consumers.gate.door import Door
from tests.consumers.gate.live import GateProcess, Outside, gate_inside

pytestmark = pytest.mark.integration

PAD = {"pad": "x" * 700_000}
DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def settings(stack: BackgroundStack, namespace: str) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=stack.bootstrap_servers, session_timeout_ms=6_000),
        storage=stack.s3,
        topics=TopicsSettings(namespace=namespace, partitions=1, retention_hours=48, dead_letter_hours=24),
        gate=GateSettings(max_age_s=24 * 3600),
    )


@pytest.fixture
async def outside(settings: Settings) -> AsyncIterator[Outside]:
    async with Outside(settings) as running_outside:
        yield running_outside


@pytest.fixture
async def gate(settings: Settings, outside: Outside) -> AsyncIterator[GateRole]:
    async with gate_inside(settings) as inside:
        yield inside


@pytest.fixture
def objects(settings: Settings) -> Iterator[ObjectStore]:
    store = ObjectStore(settings.storage)
    yield store
    store.close()


async def until(what: Callable[[], bool]) -> None:
    """Wait for what no record tells."""
    async with asyncio.timeout(30):
        while not what():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


async def num_forwarded(outside: Outside) -> Counter[str]:
    """How often each request stands on `turns`, when no gate writes there any more."""
    turns = await outside.records_of(outside.names.turns(), 0)
    return Counter(TURN.decode(one.value).envelope.request_id for one in turns)


async def test_a_gate_that_is_killed_while_a_request_waits_decides_nothing_behind_it_twice(
    settings: Settings, outside: Outside, objects: ObjectStore
) -> None:
    """All of it is one partition: what waits for storage is at its front for as long as that is away."""
    async with Door(str(settings.storage.endpoint)) as door:
        behind = msgspec.structs.replace(settings.storage, endpoint=door.endpoint, timeout_s=1.0)
        gated = msgspec.structs.replace(settings, storage=behind)
        async with GateProcess(gated) as gate:
            door.shut()
            await outside.send(chat(id="heavy", session="s1", metadata=PAD))
            await outside.send(chat(id="after", session="s1"))
            await gate.logged("request_waits_for_storage")
            for number in range(3):
                await outside.send(chat(id=f"bad{number}", temperature=99))
                await outside.send(chat(id=f"turn{number}", session="s2"))
                await outside.answer(await outside.turn(f"turn{number}"), status="failed")
            await outside.send(chat(id="last", session="s2"))
            await outside.turn("last")
            await outside.result("bad2")
            await gate.kill()
        async with GateProcess(gated) as gate:
            # It knows from the commit what is done; only what waited is begun again.
            await gate.logged("request_waits_for_storage")
            await outside.send(chat(id="bad3", temperature=99))
            await outside.result("bad3")
            await gate.kill()
        door.open()
        async with GateProcess(gated) as gate:
            heavy = await outside.turn("heavy")
            await outside.answer(heavy)
            await outside.turn("after")
            assert await gate.terminate() == 0
    claim = heavy.request.claim
    assert claim is not None
    assert fits(claim, await objects.get(claim.object))
    assert await num_forwarded(outside) == Counter(["heavy", "after", "turn0", "turn1", "turn2", "last"])
    ended = Counter(RESULT.decode(one.value).request_id for one in await outside.records_of(outside.names.results, 0))
    assert [ended[f"bad{number}"] for number in range(4)] == [1] * 4


async def test_a_parked_turn_that_is_large_is_parked_by_its_claim(
    gate: GateRole, outside: Outside, settings: Settings
) -> None:
    await outside.send(chat(id="r1", session="s1"))
    await outside.send(chat(id="r2", session="s1", metadata=PAD))
    await outside.send(chat(id="r3", session="s1"))
    await outside.wait_for(lambda: b"default/s1#1" in outside.session_records())
    for request_id in ("r1", "r2", "r3"):
        await outside.answer(await outside.turn(request_id))
    assert (await outside.turn("r2")).request.claim is not None
    assert [turn.envelope.request_id for turn in outside.turns] == ["r1", "r2", "r3"]
    largest = max(len(one.value or b"") for one in outside.of(outside.names.sessions))
    assert largest < 5_000


async def test_a_session_goes_on_from_a_result_that_lies_in_an_object(
    gate: GateRole, outside: Outside, objects: ObjectStore
) -> None:
    await outside.send(chat(id="r1", session="s1"))
    await outside.send(chat(id="r2", session="s1"))
    first = await outside.turn("r1")
    whole = result_of(first)
    content = RESULT_CONTENTS.taken(whole)
    claim = claim_for(content, outside.names, tenant="default", now_ms=BrokerClock().now_ms())
    await objects.put(claim.object, content)
    await outside.send_result(RESULT_CONTENTS.claimed(whole, claim), first)
    base = (await outside.turn("r2")).base
    assert base is not None
    state = SESSION_TURN.decode(await objects.get(base.object))
    assert state.token_ids == [*whole.prompt_token_ids, *whole.choices[0].token_ids]
    assert [message.text for message in state.messages] == ["hello", "answer to r1"]


async def test_a_result_whose_object_is_lost_leaves_its_session_where_it_was(gate: GateRole, outside: Outside) -> None:
    await outside.send(chat(id="r1", session="s1"))
    await outside.send(chat(id="r2", session="s1"))
    first = await outside.turn("r1")
    claim = claim_for(b"{}", outside.names, tenant="default", now_ms=0)
    await outside.send_result(RESULT_CONTENTS.claimed(result_of(first), claim), first)
    assert (await outside.turn("r2")).base is None
    await outside.wait_for(lambda: outside.state_of("s1").running == "r2")
    assert (outside.state_of("s1").turn, outside.state_of("s1").outcome) == (0, "failed")


async def test_many_large_requests_do_not_fill_the_memory_of_a_gate_whose_storage_is_away(
    settings: Settings, outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.gate.partition.MAX_HELD_BYTES", 2_000_000)
    async with Door(str(settings.storage.endpoint)) as door:
        behind = msgspec.structs.replace(settings.storage, endpoint=door.endpoint, timeout_s=1.0)
        door.shut()
        async with gate_inside(msgspec.structs.replace(settings, storage=behind)) as gate:
            for number in range(12):
                await outside.send(chat(id=f"r{number}", metadata=PAD))
            await until(lambda: len(gate.paused) == 2)
            door.open()
            for number in range(12):
                await outside.turn(f"r{number}")
            await until(lambda: not gate.paused)
    assert await num_forwarded(outside) == Counter(f"r{number}" for number in range(12))


async def test_objects_are_collected_when_nothing_can_refer_to_them_any_more(
    settings: Settings, outside: Outside, objects: ObjectStore
) -> None:
    clock = BrokerClock()
    # Two days of retention and one of a request's life, from the end of the day after the object's.
    ages = {0: True, 3: True, 4: True, 6: False, 100: False}
    claims = {
        age: claim_for(str(age).encode() * 2, outside.names, tenant="acme", now_ms=clock.now_ms() - age * DAY_MS)
        for age in ages
    }
    for age, claim in claims.items():
        await objects.put(claim.object, str(age).encode() * 2)
    note = claims[100].object.removesuffix(claims[100].sha256) + "note.txt"
    await objects.put(note, b"somebody's")
    collector = Collector(objects, outside.names, clock, kept_ms=kept_ms(settings))
    assert await collector.collect() == 2
    kept = set(await objects.keys(claims_prefix(outside.names)))
    assert kept == {note, *(claims[age].object for age, is_kept in ages.items() if is_kept)}
    # A gate does so when it takes the first partition over.
    old = claim_for(b"{}", outside.names, tenant="acme", now_ms=0)
    await objects.put(old.object, b"{}")
    async with GateProcess(settings) as gate:
        await gate.logged("claims_collected")
        assert await gate.terminate() == 0
    assert set(await objects.keys(claims_prefix(outside.names))) == kept


async def test_a_misplaced_request_of_almost_a_megabyte_is_moved_and_put_away(outside: Outside, gate: GateRole) -> None:
    value = msgspec.json.encode(chat(id="moved", metadata={"pad": "x" * 980_000}))
    await outside.send_raw(value, key=None, partition=0)
    assert (await outside.turn("moved")).request.claim is not None
    # Thousands of headers weigh more than their bytes.
    headers = tuple((f"h{number}", b"") for number in range(6_000))
    await outside.send_raw(value, key=None, partition=0, headers=headers)
    await outside.send(chat(id="next"))
    await outside.turn("next")
