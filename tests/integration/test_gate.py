"""The gate on the real broker: what it forwards, refuses and moves; and that nothing stops a partition."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from consumers.gate.role import GateRole
from headrace.local.background import BackgroundStack
from runtime.headers import REROUTED_FROM
from runtime.storage import ObjectStore
from schemas.claims import MAX_INLINE_BYTES
from schemas.codec import DEAD_LETTER
from schemas.settings import KafkaSettings, Settings, TopicsSettings
from tests.consumers.gate.builders import TRACEPARENT, chat, encoded
from tests.consumers.gate.live import GateProcess, Outside, gate_inside

pytestmark = pytest.mark.integration

PARTITION = 1


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


async def test_a_request_becomes_a_turn_in_its_partition_and_lane(gate: GateRole, outside: Outside) -> None:
    await outside.send(chat(id="plain"))
    await outside.send(chat(id="many"), topic=outside.names.requests("bulk"))
    for request_id, topic in [("plain", outside.names.turns()), ("many", outside.names.turns("bulk"))]:
        turn = await outside.turn(request_id)
        (seen,) = [one for one in outside.of(topic) if one.key == request_id.encode()]
        assert seen.partition == outside.partition_of(request_id)
        assert dict(seen.headers)["traceparent"] == turn.envelope.traceparent.encode()
        assert dict(seen.headers)["ce_type"] == b"headrace.turn"


async def test_a_turn_is_accepted_at_the_time_that_the_broker_gave_the_request(
    gate: GateRole, outside: Outside
) -> None:
    await outside.send(chat(id="r1", ttl_s=60))
    envelope = (await outside.turn("r1")).envelope
    (turn,) = outside.of(outside.names.turns())
    assert 0 <= turn.timestamp_ms - envelope.accepted_at_ms < 60_000
    assert envelope.deadline_ms == envelope.accepted_at_ms + 60_000


BROKEN = {
    "not UTF-8": (b"\xff\xfe{", b"k"),
    "empty": (b"", b"k"),
    "tombstone": (None, b"k"),
    "cut short": (b'{"model": "m", "messages": [', b"k"),
    "null key": (b"hello", None),
    "key of any bytes": (b"[]", b"\xff\x00\xfe"),
    "empty key": (b"nonsense", b""),
}


async def test_what_cannot_be_parsed_is_answered_and_kept_whole_and_the_partition_goes_on(
    gate: GateRole, outside: Outside
) -> None:
    headers = (("raw", b"\xff\xfe"), ("none", None), ("traceparent", TRACEPARENT.encode()))
    places = {}
    for name, (value, key) in BROKEN.items():
        if value is None and key is None:
            continue
        places[name] = await outside.send_raw(value, key=key, partition=PARTITION, headers=headers)
    for name, (value, key) in BROKEN.items():
        result = await outside.result(places[name])
        assert result.error is not None
        assert (result.status, result.error.code) == ("failed", "malformed_record"), name
        assert result.traceparent == TRACEPARENT
        await outside.wait_for(lambda place=places[name]: bool(outside.dead_letters_of(place)))  # type: ignore[misc]
        (letter,) = outside.dead_letters_of(places[name])
        assert (letter.key, letter.value, letter.headers) == (key, value, list(headers)), name
    assert {one.partition for one in outside.of(outside.names.results)} == {PARTITION}
    await outside.send(chat(id=outside.id_in(PARTITION)))
    await outside.turn(outside.id_in(PARTITION))


async def test_header_names_of_any_bytes_stop_nothing(gate: GateRole, outside: Outside) -> None:
    """No broker refuses them; aiokafka's own consumer would stop, for all its partitions and for ever."""
    right = outside.id_in(PARTITION)
    first = await outside.send_with_raw_header_name(
        b"\xff\xfe", [(right.encode(), encoded(chat(id=right))), (b"k", b"broken")], partition=PARTITION
    )
    await outside.turn(right)
    place = f"{outside.names.requests()}-{PARTITION}-{first + 1}"
    await outside.wait_for(lambda: bool(outside.dead_letters_of(place)))
    (letter,) = outside.dead_letters_of(place)
    assert letter.headers == [("\\xff\\xfe", b"1")]
    await outside.send(chat(id="after"))
    await outside.turn("after")


async def test_an_invalid_request_is_answered_under_its_own_id_without_a_dead_letter(
    gate: GateRole, outside: Outside
) -> None:
    await outside.send(chat(id="r1", temperature=9, tenant="acme"))
    await outside.send({"id": "r2", "model": "m", "input": "embed me"})
    first, second = await outside.result("r1"), await outside.result("r2")
    assert first.error is not None
    assert second.error is not None
    assert (first.tenant, first.error.code, first.error.param) == ("acme", "invalid_value", "temperature")
    assert (second.object, second.error.code) == ("list", "unsupported")
    (seen,) = [one for one in outside.of(outside.names.results) if one.key == b"r1"]
    assert seen.partition == outside.partition_of("r1")
    assert dict(seen.headers)["traceparent"] == str(first.traceparent).encode()
    assert outside.of(outside.names.dead_letters) == []


async def test_an_expired_request_is_not_begun(gate: GateRole, outside: Outside) -> None:
    await outside.send(chat(id="r1", deadline_ms=1))
    assert (await outside.result("r1")).status == "expired"
    assert outside.turns == []


async def test_a_null_key_is_moved_to_its_partition_and_answered_there(gate: GateRole, outside: Outside) -> None:
    right = outside.partition_of("good")
    place = await outside.send_raw(encoded(chat(id="good")), key=None, partition=(right + 1) % 3)
    await outside.send_raw(encoded(chat(id="bad", n=0)), key=None, partition=(outside.partition_of("bad") + 1) % 3)
    await outside.turn("good")
    await outside.result("bad")
    (turn,) = outside.of(outside.names.turns())
    (result,) = outside.of(outside.names.results)
    assert (turn.key, turn.partition) == (b"good", right)
    assert (result.key, result.partition) == (b"bad", outside.partition_of("bad"))
    moved = await outside.records_of(outside.names.requests(), right)
    assert [dict(one.headers).get(REROUTED_FROM) for one in moved if one.key == b"good"] == [place.encode()]


async def test_a_request_without_id_and_key_is_named_by_where_it_was_sent(gate: GateRole, outside: Outside) -> None:
    place = await outside.send_raw(encoded(chat()), key=None, partition=0)
    turn = await outside.turn(place)
    assert turn.envelope.key == place
    (seen,) = outside.of(outside.names.turns())
    assert seen.partition == outside.partition_of(place)


async def test_a_dead_letter_too_large_for_a_record_is_kept_in_object_storage(
    gate: GateRole, outside: Outside, settings: Settings
) -> None:
    value = b"{" + b"x" * (MAX_INLINE_BYTES + 1)
    place = await outside.send_raw(value, key=b"k", partition=PARTITION, headers=(("h", b"1"),))
    await outside.wait_for(lambda: bool(outside.dead_letters_of(place)))
    (letter,) = outside.dead_letters_of(place)
    assert (letter.value, letter.key, letter.headers) == (None, None, [])
    assert letter.object is not None
    assert letter.object.startswith(f"{settings.topics.namespace}/claims/default/")
    objects = ObjectStore(settings.storage)
    bundle = DEAD_LETTER.decode(await objects.get(letter.object))
    objects.close()
    assert (bundle.value, bundle.key, bundle.headers) == (value, b"k", [("h", b"1")])


async def test_a_broken_record_is_answered_also_when_storage_is_away(settings: Settings, outside: Outside) -> None:
    away = msgspec.structs.replace(settings.storage, endpoint="127.0.0.1:9", timeout_s=0.5)
    async with GateProcess(msgspec.structs.replace(settings, storage=away)):
        place = await outside.send_raw(b"{" + b"x" * MAX_INLINE_BYTES, key=b"k", partition=PARTITION)
        await outside.wait_for(lambda: bool(outside.dead_letters_of(place)))
        assert outside.dead_letters_of(place)[0].object is None
        assert (await outside.result(place)).status == "failed"


async def test_a_request_as_large_as_a_turn_may_be_is_forwarded(gate: GateRole, outside: Outside) -> None:
    await outside.send(chat("x" * 500_000, id="large"))
    await outside.send(chat("x" * 600_000, id="larger"))
    assert len((await outside.turn("large")).request.messages[0].text) == 500_000  # type: ignore[union-attr]
    assert (await outside.turn("larger")).request.claim is not None


async def test_after_an_orderly_stop_nothing_is_left_and_nothing_comes_twice(
    settings: Settings, outside: Outside
) -> None:
    async with GateProcess(settings) as gate:
        for number in range(30):
            await outside.send(chat(id=f"r{number}"))
        await outside.send(chat(id="bad", n=0))
        await outside.turn("r29")
        await outside.result("bad")
        assert await gate.terminate() == 0
    assert await outside.lag() == 0
    async with GateProcess(settings) as gate:
        await outside.send(chat(id="last"))
        await outside.turn("last")
        assert await gate.terminate() == 0
    ids = [turn.envelope.request_id for turn in outside.turns]
    assert sorted(ids) == sorted({*ids})
    assert len(outside.results_of("bad")) == 1


async def test_progress_of_plain_requests_is_committed_while_the_gate_runs(gate: GateRole, outside: Outside) -> None:
    for number in range(10):
        await outside.send(chat(id=f"r{number}"))
    for number in range(10):
        await outside.turn(f"r{number}")
    while await outside.lag() > 0:
        assert gate.health().is_alive


async def test_without_topics_the_gate_says_how_to_create_them(settings: Settings) -> None:
    async with GateProcess(settings) as gate:
        await gate.logged("headrace topics create")
        assert await gate.ended() == 1


async def test_topics_with_another_number_of_partitions_are_refused(settings: Settings, outside: Outside) -> None:
    other = msgspec.structs.replace(settings.topics, partitions=4)
    async with GateProcess(msgspec.structs.replace(settings, topics=other)) as gate:
        await gate.logged("has 3 partitions, topics.partitions says 4")
        assert await gate.ended() == 1
