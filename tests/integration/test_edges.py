"""What strangers send, against all roles: each bad record gets its answer, and the one behind it is served."""

import asyncio
import base64
import contextlib
import gzip
import itertools
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from headrace import Client
from headrace.local.background import BackgroundStack
from runtime.kafka import partition_for
from schemas.names import LANES, Names
from schemas.settings import DEFAULT_MODEL, KafkaSettings, Settings, TopicsSettings
from tests.integration.live_roles import NUM_PARTITIONS, environment, roles_at_work
from tests.integration.plain_client import PlainClient
from tests.integration.test_cli import Cli

# The roles load a model before the first test: on a busy machine that takes its time.
pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

GOOD: dict[str, Any] = {
    "model": DEFAULT_MODEL,
    "messages": [{"role": "user", "content": "Say hi."}],
    "temperature": 0,
    "max_tokens": 2,
}
BODY = json.dumps(GOOD)[1:-1]


@pytest.fixture(scope="module")
def live(stack: BackgroundStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainClient]:
    """All roles at work in a name space of this module's own, and a plain client of it."""
    namespace = f"edge{uuid4().hex[:6]}"
    with (
        roles_at_work(environment(stack, namespace), tmp_path_factory.mktemp("roles")),
        contextlib.closing(PlainClient(stack.bootstrap_servers, namespace)) as client,
    ):
        yield client


@pytest.fixture
def settings(live: PlainClient, stack: BackgroundStack) -> Settings:
    """For our own client, beside the plain one."""
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=stack.bootstrap_servers),
        storage=stack.s3,
        topics=TopicsSettings(namespace=live.namespace, partitions=NUM_PARTITIONS),
    )


def fresh_id(partition: int | None = None) -> str:
    """An id that nobody has, in a partition if one is given."""
    ids = (f"e{uuid4().hex[:10]}" for _ in itertools.count())
    return next(one for one in ids if partition in (None, partition_for(one.encode(), NUM_PARTITIONS)))


def goes_on(live: PlainClient, *partitions: int, lane: str = "") -> None:
    """Good requests in these partitions are served (in all of them where none is named)."""
    ids = [fresh_id(partition) for partition in partitions or range(NUM_PARTITIONS)]
    for request_id in ids:
        live.produce(json.dumps({"id": request_id, **GOOD}).encode(), key=request_id, lane=lane)
    assert [live.answer(request_id).result["status"] for request_id in ids] == ["completed"] * len(ids)


def with_fields(fields: str) -> bytes:
    return b"{" + f"{BODY}, {fields}".encode() + b"}"


MALFORMED = {
    "broken UTF-8": b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "a surrogate as bytes": b'{"messages": "\xed\xa0\x80"}',
    "a lone surrogate in the content": with_fields(r'"user": "\ud83d"'),
    "a lone surrogate in an id": with_fields(r'"id": "\udf0a"'),
    "a lone surrogate in a name": with_fields(r'"\ud83d": 1'),
    "depth": with_fields(f'"metadata": {{"a": {"[" * 100_000}{"]" * 100_000}}}'),
    "a number without end": with_fields('"seed": 1e400'),
    "a number of 5,000 digits": with_fields(f'"x": {"9" * 5_000}'),
    "NaN": with_fields('"temperature": NaN'),
    "a byte order mark": json.dumps(GOOD).encode("utf-8-sig"),
    "UTF-16": json.dumps(GOOD).encode("utf-16"),
    "compressed by the application": gzip.compress(json.dumps(GOOD).encode()),
}


def test_what_is_no_json_is_refused_with_a_remedy_and_its_partition_goes_on(live: PlainClient) -> None:
    key = fresh_id()
    places = {name: live.produce(value, key=key) for name, value in MALFORMED.items()}
    for name, place in places.items():
        error = live.answer(place).result["error"]
        assert error["code"] == "malformed_record", name
        assert base64.b64decode(live.dead_letter(place)["value"]) == MALFORMED[name]
    said = {name: live.answer(place).result["error"]["message"] for name, place in places.items()}
    assert "surrogate" in said["a lone surrogate in the content"]
    assert "byte order mark" in said["a byte order mark"]
    assert "UTF-16" in said["UTF-16"]
    assert "compression.type" in said["compressed by the application"]
    goes_on(live, partition_for(key.encode(), NUM_PARTITIONS))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (r'"id": "a\u0000b"', "id"),
        (r'"session": "s\u0000"', "session"),
        (f'"max_tokens": {10**400}', None),
        ('"max_tokens": -0', "max_tokens"),
        ('"max_tokens": 1.5', "max_tokens"),
        (f'"x": {10**30}', None),
        (f'"metadata": {{"a": {"[" * 200}{"]" * 200}}}', None),
    ],
)
def test_values_that_no_request_may_have_are_named(live: PlainClient, fields: str, param: str | None) -> None:
    place = live.produce(with_fields(fields), key="somebody")
    error = live.answer(place).result["error"]
    assert (error["code"], error.get("param")) == ("invalid_value", param)
    goes_on(live, int(place.split("-")[-2]))


@pytest.mark.parametrize(
    "fields",
    [
        '"max_tokens": 64.0, "max_tokens": 2.0, "n": 1.0, "seed": 7.0',
        '"temperature": -0.0',
        r'"messages": [{"role": "user", "content": "a\u0000b\ufffe \ud83c\udf0a"}]',
        '"x_future": {"a": [1.5, null]}, "metadata": {"x": 1.0}',
    ],
)
def test_odd_values_that_mean_something_are_served(live: PlainClient, fields: str) -> None:
    request_id = fresh_id()
    live.produce(with_fields(f'{fields}, "id": "never", "id": "{request_id}"'), key=request_id)
    result = live.answer(request_id).result
    assert (result["status"], len(result["choices"][0]["token_ids"])) == ("completed", 2)


@pytest.mark.parametrize("compression", ["gzip", "lz4", "zstd", "snappy"])
def test_records_that_the_producer_compresses_are_read(live: PlainClient, compression: str) -> None:
    request_id = fresh_id()
    body = {"id": request_id, **GOOD, "metadata": {"long": "river " * 2_000}}
    live.produce(json.dumps(body).encode(), key=request_id, compression=compression)
    assert live.answer(request_id).result["status"] == "completed"


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([("content-encoding", b"br"), ("content-type", b"text/html; charset=utf-16")], id="unknown kinds"),
        pytest.param([("a", None), ("traceparent", None), ("tenant", None), ("ce_id", None)], id="null values"),
        pytest.param([(f"h{number}", b"v" * 50) for number in range(1_000)], id="1,000 of them"),
        pytest.param([("", b""), ("é \x01", bytes(range(256))), ("traceparent", b"\xff" * 300)], id="any bytes"),
        pytest.param([("headrace_rerouted_from", b"\xff"), ("headrace_rerouted_from", None)], id="our own, forged"),
    ],
)
def test_headers_of_any_kind_change_nothing(live: PlainClient, headers: list[tuple[str, bytes | None]]) -> None:
    request_id = fresh_id()
    live.produce(json.dumps({"id": request_id, **GOOD}).encode(), key=request_id, headers=headers)
    answer = live.answer(request_id)
    assert answer.result["status"] == "completed"
    assert len({one["traceparent"] for one in answer.headers}) == 1
    place = live.produce(b"no json", key=request_id, headers=headers)
    assert [name for name, _ in live.dead_letter(place)["headers"]] == [name for name, _ in headers]


@pytest.mark.parametrize(
    "key", [b"", b"k" * 100_000, b"\xed\xa0\x80", b"\x00"], ids=["empty", "100 kB", "no text", "NUL"]
)
def test_a_key_of_any_bytes_is_put_right(live: PlainClient, key: bytes) -> None:
    request_id = fresh_id()
    live.produce(json.dumps({"id": request_id, **GOOD}).encode(), key=key, partition=0)
    assert live.answer(request_id).result["status"] == "completed"
    nameless = live.produce(json.dumps(GOOD).encode(), key=key, partition=1)
    assert live.answer(nameless).result["status"] == "completed"
    broken = live.produce(b"no json", key=key, partition=2)
    assert live.answer(broken).result["error"]["code"] == "malformed_record"
    assert base64.b64decode(live.dead_letter(broken)["key"]) == key


def test_of_requests_in_transactions_the_committed_ones_are_served(live: PlainClient) -> None:
    aborted, committed = fresh_id(0), fresh_id(0)
    live.transact([(aborted, json.dumps({"id": aborted, **GOOD}).encode())], commit=False)
    live.transact([(committed, json.dumps({"id": committed, **GOOD}).encode())], commit=True)
    assert live.answer(committed).result["status"] == "completed"
    goes_on(live, 0)
    assert live.results(aborted) == 0


def topics_of_roles(namespace: str) -> list[str]:
    """Every topic that a role or a reader of ours reads, without the name space."""
    names = Names(namespace)
    of_lanes = (names.requests, names.turns, names.refusals, lambda lane: names.batches(DEFAULT_MODEL, lane))
    topics = [of_lane(lane) for lane in LANES for of_lane in of_lanes]
    topics += [names.tokens, names.results, names.sessions, names.control]
    return [topic.removeprefix(f"{namespace}.") for topic in topics]


GARBAGE = [None, b"", b"\xff\xfe{", b"null", b"\x80", b"\x91" * 5_000, b"{" * 5_000, b"x" * 100_000]


def test_garbage_on_any_topic_stops_no_partition_of_any_role(live: PlainClient, settings: Settings) -> None:
    """By all rights only our own roles write to most of these topics: one bad record there must stop nothing either."""
    for topic in topics_of_roles(live.namespace):
        for partition, value in itertools.product(range(NUM_PARTITIONS), GARBAGE):
            for headers in ([], [("ce_id", None), ("\x01", b"\xff")]):
                live.produce(value, key=b"k", partition=partition, headers=headers, topic=topic)
    goes_on(live)
    goes_on(live, lane=".bulk")
    session = fresh_id()
    turns = [live.ask(fresh_id(), session=session, **GOOD).result["turn"] for _ in range(2)]
    assert turns == [1, 2]

    async def ask() -> str:
        async with Client(settings, timeout_s=60) as client:
            result = await client.complete("Say hi.", max_tokens=2, temperature=0.0)
            return (await client.tail(result.request_id).read()).status

    assert asyncio.run(ask()) == "completed"


def test_a_turn_or_batch_that_cannot_be_read_still_ends_the_request_that_its_headers_name(live: PlainClient) -> None:
    for topic in ("turns", "turns.bulk", f"batches.{DEFAULT_MODEL}", f"batches.{DEFAULT_MODEL}.bulk", "batches.none"):
        request_id = fresh_id()
        headers = [("ce_id", request_id.encode()), ("tenant", b"default")]
        live.produce(b"\xff", key=request_id, headers=headers, topic=topic)
        result = live.answer(request_id).result
        assert (result["status"], result["error"]["code"]) == ("failed", "malformed_record"), topic
        goes_on(live, partition_for(request_id.encode(), NUM_PARTITIONS))


@pytest.mark.parametrize("session", [None, "twice"])
async def test_a_request_that_is_sent_twice_has_one_end_and_both_readers_get_it(
    live: PlainClient, settings: Settings, session: str | None
) -> None:
    request_id = fresh_id()
    options: dict[str, Any] = {"session": session, "request_id": request_id, "max_tokens": 40, "temperature": 0.0}
    async with Client(settings, timeout_s=60) as one, Client(settings, timeout_s=60) as other:
        first = asyncio.create_task(one.complete("Count to twenty.", **options))
        second = asyncio.create_task(other.complete("Count to twenty.", **options))
        texts = {(await first).text, (await second).text}
        later = await other.complete("Count to twenty.", **options)
    assert texts == {later.text}
    answer = await asyncio.to_thread(live.answer, request_id)
    assert live.results(request_id) == 1
    tokens = [token for delta in answer.deltas for token in delta.get("token_ids", [])]
    assert tokens == answer.result["choices"][0]["token_ids"]


async def test_a_session_begins_with_its_first_turn_and_before_it_is_not_known(
    live: PlainClient, settings: Settings, tmp_path: Any
) -> None:
    cli, session, request_id = Cli(settings, tmp_path), fresh_id(), fresh_id()
    code, _, err = await cli.run("tail", request_id, "--session", session, "--timeout", "1")
    assert code == 1
    assert f"the session '{session}' is not known" in err
    result = await asyncio.to_thread(lambda: live.ask(request_id, session=session, **GOOD).result)
    assert (result["status"], result["turn"]) == ("completed", 1)
    assert (await cli.run("tail", request_id, "--session", session, "--timeout", "20"))[0] == 0
    code, _, err = await cli.run("tail", "another", "--session", session, "--timeout", "1")
    assert f"session '{session}' has no request 'another'" in err
