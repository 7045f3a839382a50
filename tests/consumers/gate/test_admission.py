"""What the gate decides of each record on `requests`."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.gate.admission import MAX_REROUTED_BYTES, Decision, Forward, Refuse, Reroute, admit
from consumers.gate.arrival import Arrival
from runtime.headers import REROUTED_FROM
from runtime.kafka import partition_for
from schemas.codec import DEAD_LETTER, RESULT, TURN
from schemas.envelope import DEFAULT_TENANT
from schemas.passing import MAX_NESTING
from schemas.requests import CompletionRequest
from tests.consumers.gate.builders import (
    NOW_MS,
    NUM_PARTITIONS,
    REQUESTS,
    RULES,
    TRACEPARENT,
    arrival,
    chat,
    encoded,
)


def decide(record: Arrival, *, now_ms: float = NOW_MS) -> Decision:
    return admit(record, RULES, now_ms=now_ms)


def refusal(record: Arrival, *, now_ms: float = NOW_MS) -> Refuse:
    decision = decide(record, now_ms=now_ms)
    assert isinstance(decision, Refuse)
    return decision


def forward(record: Arrival, *, now_ms: float = NOW_MS) -> Forward:
    decision = decide(record, now_ms=now_ms)
    assert isinstance(decision, Forward)
    return decision


def test_a_valid_request_is_forwarded_with_its_envelope() -> None:
    body = chat(id="r1", tenant="acme", priority=3, stream=False, temperature=0.5, top_a=0.1)
    decision = forward(arrival(encoded(body), key=b"r1"))
    envelope = decision.turn.envelope
    assert (envelope.request_id, envelope.key, envelope.tenant) == ("r1", "r1", "acme")
    assert (envelope.priority, envelope.stream, envelope.session) == (3, False, None)
    assert (envelope.accepted_at_ms, envelope.traceparent) == (NOW_MS, TRACEPARENT)
    assert decision.turn.unknown_fields == {"top_a": 0.1}
    assert TURN.decode(decision.value) == decision.turn


def test_the_key_of_a_session_request_is_its_session() -> None:
    decision = forward(arrival(encoded(chat(id="r1", session="s1")), key=b"s1"))
    assert decision.turn.envelope.key == decision.turn.envelope.session == "s1"


def test_a_request_without_an_id_is_named_by_its_place() -> None:
    body = encoded(chat(session="s1"))
    decision = forward(arrival(body, key=b"s1", offset=41))
    partition = partition_for(b"s1", NUM_PARTITIONS)
    assert decision.turn.envelope.request_id == f"{REQUESTS}-{partition}-41"


def test_a_completion_is_forwarded_as_one() -> None:
    body = {"model": "m", "prompt": "Once upon", "id": "r1"}
    assert isinstance(forward(arrival(encoded(body), key=b"r1")).turn.request, CompletionRequest)


@pytest.mark.parametrize(
    ("fields", "expected_s"),
    [
        ({}, 3600.0),
        ({"ttl_s": 5}, 5.0),
        ({"ttl_s": 1e300}, 86_400.0),
        ({"deadline_ms": NOW_MS + 2_000}, 2.0),
        ({"ttl_s": 1, "deadline_ms": NOW_MS + 2_000}, 1.0),
        ({"deadline_ms": NOW_MS + 10**9}, 3600.0),
    ],
)
def test_the_earliest_of_all_deadlines_holds(fields: dict[str, Any], expected_s: float) -> None:
    decision = forward(arrival(encoded(chat(id="r1", **fields)), key=b"r1"))
    assert decision.turn.envelope.deadline_ms == NOW_MS + int(expected_s * 1000)


def test_a_request_whose_deadline_has_passed_ends_as_expired() -> None:
    record = arrival(encoded(chat(id="r1", ttl_s=5)), key=b"r1")
    decision = refusal(record, now_ms=NOW_MS + 5_000)
    assert decision.result.status == "expired"
    assert decision.result.error is not None
    assert decision.result.error.code == "deadline_exceeded"
    assert decision.dead_letter is None
    assert isinstance(decide(record, now_ms=NOW_MS + 4_999), Forward)


def test_a_request_on_the_bulk_topic_is_bulk_whatever_it_says() -> None:
    record = arrival(encoded(chat(id="r1")), key=b"r1", topic=f"{REQUESTS}.bulk")
    assert forward(record).turn.envelope.priority_class == "bulk"


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="tombstone"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe{", id="not UTF-8"),
        pytest.param(b"hello", id="not JSON"),
        pytest.param(b'{"model": "m", "messages": [', id="cut short"),
        pytest.param(b"[1, 2]", id="array"),
        pytest.param(b"null", id="null"),
        pytest.param(b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="nested beyond the decoder"),
    ],
)
def test_what_cannot_be_parsed_fails_and_goes_to_dead_letters_whole(value: bytes | None) -> None:
    headers = (("tenant", b"\xff\x00"), ("empty", None))
    decision = refusal(arrival(value, key=b"\xff\xfe", partition=2, headers=headers))
    error, letter = decision.result.error, decision.dead_letter
    assert decision.result.status == "failed"
    assert error is not None
    assert (error.code, error.type) == ("malformed_record", "invalid_request_error")
    assert decision.result.request_id == f"{REQUESTS}-2-7"
    assert letter is not None
    assert (letter.key, letter.value, letter.headers) == (b"\xff\xfe", value, list(headers))
    assert DEAD_LETTER.decode(DEAD_LETTER.encode(letter)) == letter


def test_the_answer_to_a_broken_record_has_the_key_that_it_was_sent_with() -> None:
    assert refusal(arrival(b"{", key=b"my-id", partition=0)).envelope.key == "my-id"
    assert refusal(arrival(b"{", key=b"\xff", partition=0)).envelope.key == f"{REQUESTS}-0-7"
    assert refusal(arrival(b"{", key=None, partition=0)).envelope.key == f"{REQUESTS}-0-7"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"temperature": 9}, "temperature"),
        ({"max_tokens": "ten"}, "max_tokens"),
        ({"model": None}, "model"),
        ({"seed": 2**70}, "seed"),
    ],
)
def test_an_invalid_value_fails_with_its_path_and_without_a_dead_letter(fields: dict[str, Any], param: str) -> None:
    decision = refusal(arrival(encoded(chat(id="r1", **fields)), key=b"r1"))
    error = decision.result.error
    assert error is not None
    assert (error.code, error.param) == ("invalid_value", param)
    assert (decision.result.request_id, decision.result.tenant) == ("r1", DEFAULT_TENANT)
    assert decision.dead_letter is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "m", "input": "embed me", "id": "r1"}, None),
        (chat(id="r1", tools=[{"type": "function"}]), "tools"),
        (chat(id="r1", tool_choice="required"), "tool_choice"),
    ],
)
def test_what_is_not_served_yet_is_named_as_unsupported(body: dict[str, Any], param: str | None) -> None:
    error = refusal(arrival(encoded(body), key=b"r1")).result.error
    assert error is not None
    assert (error.code, error.param) == ("unsupported", param)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"not": {}}}}},
        {"structured_outputs": {"choice": ["yes", "no"]}},
    ],
)
def test_what_asks_for_nothing_more_than_text_of_some_form_is_served(fields: dict[str, Any]) -> None:
    forward(arrival(encoded(chat(id="r1", **fields)), key=b"r1"))


@pytest.mark.parametrize(
    ("body", "object_", "prefix"),
    [
        ({"prompt": 5}, "text_completion", "cmpl-"),
        ({"input": 5}, "list", "embd-"),
        ({"messages": 5}, "chat.completion", "chatcmpl-"),
        ({"kind": "completion"}, "text_completion", "cmpl-"),
        ({"kind": "poem"}, "chat.completion", "chatcmpl-"),
    ],
)
def test_a_refusal_has_the_shape_of_the_answer_that_was_asked_for(body: Any, object_: str, prefix: str) -> None:
    result = refusal(arrival(encoded({"id": "r1", "model": "m", **body}), key=b"r1")).result
    assert (result.object, result.id, result.model) == (object_, f"{prefix}r1", "m")
    assert result.created == NOW_MS // 1000
    assert result.traceparent == TRACEPARENT


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"x": 2**64}, id="integer over 64 bits"),
        pytest.param({"metadata": {"x": -(2**63) - 1}}, id="negative integer under 64 bits"),
        pytest.param({"deadline_ms": 10**30}, id="deadline of the far future"),
        pytest.param({"structured_outputs": {"json": {"maximum": 2**64}}}, id="integer in a schema"),
    ],
)
def test_numbers_that_messagepack_cannot_hold_are_refused(fields: dict[str, Any]) -> None:
    error = refusal(arrival(encoded(chat(id="r1", **fields)), key=b"r1")).result.error
    assert error is not None
    assert error.code == "invalid_value"


def _schema_format(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}


@pytest.mark.parametrize(
    ("field", "around"),
    [
        ("x", lambda deep: [deep]),
        ("metadata", lambda deep: deep),
        ("structured_outputs", lambda deep: {"json": deep}),
        ("response_format", _schema_format),
    ],
)
def test_nesting_that_a_later_stage_could_not_decode_is_refused(field: str, around: Callable[[Any], Any]) -> None:
    def nested(levels: int) -> bytes:
        deep: Any = {"a": "leaf"}
        for number in range(levels):
            deep = {"a": [deep] if number % 2 else deep}
        return encoded(chat(id="r1", **{field: around(deep)}))

    assert isinstance(decide(arrival(nested(MAX_NESTING // 2), key=b"r1")), Forward)
    assert refusal(arrival(nested(MAX_NESTING + 1), key=b"r1")).result.error is not None


@pytest.mark.parametrize(
    "body",
    [
        chat(id="r1", model="m" * 900_000),
        {"id": "r1", "model": "m", "messages": [{"role": "w" * 900_000}]},
        {"id": "r1", "model": "m", "kind": "k" * 900_000},
        {"id": "i" * 900_000, "model": "m", "messages": []},
    ],
)
def test_an_answer_does_not_grow_with_what_it_refuses(body: dict[str, Any]) -> None:
    decision = refusal(arrival(encoded(body), key=b"r1"))
    assert len(RESULT.encode(decision.result)) < 5_000


# ---- partitions ------------------------------------------------------------------------------------------------------


def test_a_null_key_is_rerouted_to_where_its_id_belongs() -> None:
    headers = (("mine", b"\xff"), ("traceparent", b"nonsense"), ("none", None))
    record = arrival(encoded(chat(id="r1")), key=None, partition=5, headers=headers)
    decision = decide(record)
    assert decision == Reroute(
        partition=partition_for(b"r1", NUM_PARTITIONS),
        key=b"r1",
        headers=[
            ("mine", b"\xff"),
            ("none", None),
            ("traceparent", TRACEPARENT.encode()),
            (REROUTED_FROM, f"{REQUESTS}-5-7".encode()),
        ],
    )


def test_a_null_key_is_rerouted_also_where_the_partition_happens_to_be_right() -> None:
    right = partition_for(b"r1", NUM_PARTITIONS)
    decision = decide(arrival(encoded(chat(id="r1")), key=None, partition=right))
    assert isinstance(decision, Reroute)
    assert (decision.partition, decision.key) == (right, b"r1")


@pytest.mark.parametrize("body", [chat(id="r1", session="s1"), chat(session="s1")])
@pytest.mark.parametrize("key", [b"r1", b"", b"\xff", None, b"s1"])
def test_a_session_request_anywhere_else_than_with_its_session_is_rerouted(
    body: dict[str, Any], key: bytes | None
) -> None:
    wrong = (partition_for(b"s1", NUM_PARTITIONS) + 1) % NUM_PARTITIONS
    decision = decide(arrival(encoded(body), key=key, partition=wrong))
    assert isinstance(decision, Reroute)
    assert decision.key == b"s1"


def test_a_rerouted_request_without_an_id_keeps_the_name_of_its_first_place() -> None:
    value = encoded(chat())
    first = arrival(value, key=None, partition=3, offset=12)
    moved = decide(first)
    assert isinstance(moved, Reroute)
    second = arrival(value, key=moved.key, partition=moved.partition, offset=99, headers=tuple(moved.headers))
    assert forward(second).turn.envelope.request_id == f"{REQUESTS}-3-12"


def test_an_invalid_request_is_answered_where_its_id_belongs() -> None:
    value = encoded(chat(id="r1", temperature=9))
    moved = decide(arrival(value, key=None, partition=(partition_for(b"r1", NUM_PARTITIONS) + 1) % NUM_PARTITIONS))
    assert isinstance(moved, Reroute)
    second = arrival(value, key=moved.key, partition=moved.partition, headers=tuple(moved.headers))
    assert refusal(second).result.request_id == "r1"


@pytest.mark.parametrize("fields", [{"id": "no spaces allowed"}, {"id": 5}, {"id": "r1", "session": "a/b"}])
def test_a_record_whose_name_cannot_be_one_is_refused_where_it_stands(fields: dict[str, Any]) -> None:
    decision = refusal(arrival(encoded(chat(**fields)), key=b"other", partition=4))
    assert decision.result.error is not None
    assert decision.result.error.code == "invalid_value"
    assert decision.envelope.key == "other"


def test_a_record_that_was_rerouted_and_is_still_wrong_is_refused() -> None:
    wrong = (partition_for(b"r1", NUM_PARTITIONS) + 1) % NUM_PARTITIONS
    headers = ((REROUTED_FROM, f"{REQUESTS}-0-1".encode()),)
    decision = refusal(arrival(encoded(chat(id="r1")), key=b"r1", partition=wrong, headers=headers))
    assert decision.result.error is not None
    assert REROUTED_FROM in decision.result.error.message


@pytest.mark.parametrize(
    "forged", [b"", b"\xff", b"other.topic-0-1", f"{REQUESTS}-0-1; drop".encode(), None, b"x" * 9**5]
)
def test_a_forged_origin_names_no_request(forged: bytes | None) -> None:
    record = arrival(encoded(chat(session="s1")), key=b"s1", headers=((REROUTED_FROM, forged),), offset=3)
    partition = partition_for(b"s1", NUM_PARTITIONS)
    assert forward(record).turn.envelope.request_id == f"{REQUESTS}-{partition}-3"


def test_a_misplaced_record_that_is_too_large_to_be_copied_is_refused() -> None:
    record = arrival(encoded(chat("x" * MAX_REROUTED_BYTES, id="r1")), key=None, partition=0)
    error = refusal(record).result.error
    assert error is not None
    assert error.code == "request_too_large"


# ---- any bytes -------------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from([*chat(), "id", "session", "tenant", "ttl_s", "deadline_ms", "kind", "class", "n", "stop", "x"])
bodies = st.dictionaries(names, json_values, max_size=5).map(lambda fields: {**chat(), **fields})
values = st.none() | st.binary() | bodies.map(lambda body: json.dumps(body).encode())
keys = st.none() | st.binary(max_size=20) | st.sampled_from([b"r1", b"s1"])
header_lists = st.lists(
    st.tuples(st.text(max_size=5) | st.just(REROUTED_FROM), st.none() | st.binary(max_size=9)), max_size=3
)


@given(value=values, key=keys, headers=header_lists, partition=st.integers(0, NUM_PARTITIONS - 1))
def test_any_bytes_lead_to_a_decision_that_can_be_written(
    value: bytes | None, key: bytes | None, headers: list[tuple[str, bytes | None]], partition: int
) -> None:
    record = arrival(value, key=key, partition=partition, headers=tuple(headers))
    match decide(record):
        case Forward(turn, written):
            assert TURN.decode(written) == turn
            assert partition_for(turn.envelope.key.encode(), NUM_PARTITIONS) == partition
        case Reroute() as moved:
            copied = arrival(value, key=moved.key, partition=moved.partition, headers=tuple(moved.headers))
            assert not isinstance(decide(copied), Reroute)
        case Refuse() as refused:
            assert RESULT.decode(RESULT.encode(refused.result)) == refused.result
            assert refused.result.status in {"failed", "expired"}
