"""Claim checks: what is taken apart comes together again, and an object is kept for as long as it can be asked for."""

import ast
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.batches import Sequence
from schemas.bodies import INLINE_FIELDS, join_body, split_body
from schemas.claims import ClaimCheck, claim_for, claims_prefix, collectable, fits, is_claimed, keys_of
from schemas.codec import RESULT, decode_request
from schemas.contents import RESULT_CONTENTS, SEQUENCE_CONTENTS
from schemas.envelope import Envelope, ModelHashes
from schemas.errors import ClaimDamaged, InvalidValue
from schemas.names import Names
from schemas.requests import ChatRequest, Message, RequestBase
from schemas.results import Result, ResultChoice
from schemas.sampling import SamplingParams, TokenLogprob

NAMES = Names("ns")
DAY_MS = 24 * 3600 * 1000.0
NOW_MS = datetime(2026, 11, 30, 14, 3, tzinfo=UTC).timestamp() * 1000

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=8)
MESSAGES = st.lists(st.builds(Message, role=st.just("user"), content=TEXTS), max_size=3)
LOGPROBS = st.builds(
    TokenLogprob,
    token_id=st.integers(0, 9),
    logprob=st.floats(-50, 0),
    top=st.lists(st.tuples(st.integers(0, 9), st.floats(-50, 0)), max_size=2),
)
CHOICES = st.builds(
    ResultChoice,
    index=st.integers(0, 3),
    finish_reason=st.just("stop"),
    token_ids=IDS,
    text=TEXTS,
    logprobs=st.none() | st.lists(LOGPROBS, max_size=2),
)
RESULTS = st.builds(
    Result,
    id=st.just("c"),
    object=st.just("chat.completion"),
    created=st.just(0),
    model=st.just("m"),
    request_id=st.just("r1"),
    status=st.sampled_from(["completed", "failed"]),
    choices=st.lists(CHOICES, max_size=3),
    messages=MESSAGES,
    prompt_token_ids=IDS,
    num_base_tokens=st.integers(0, 3),
)
SEQUENCES = st.builds(
    Sequence,
    envelope=st.just(Envelope(request_id="r1", key="r1", accepted_at_ms=1, deadline_ms=2, traceparent="t")),
    model=st.just("m"),
    hashes=st.just(ModelHashes(model="", tokenizer="", template="")),
    prompt_token_ids=IDS,
    messages=MESSAGES,
    sampling=st.just(SamplingParams(max_tokens=1, seed=1)),
)
CLAIM = claim_for(b"{}", NAMES, tenant="default", now_ms=NOW_MS)

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(record=RESULTS)
def test_a_result_taken_apart_is_the_same_when_it_is_put_together(record: Result) -> None:
    apart = RESULT_CONTENTS.claimed(record, CLAIM)
    assert (apart.choices, apart.messages, apart.prompt_token_ids, apart.claim) == ([], [], [], CLAIM)
    travelled = RESULT.decode(RESULT.encode(apart))
    assert isinstance(travelled, Result)
    assert RESULT_CONTENTS.joined(travelled, RESULT_CONTENTS.taken(record)) == record


@given(record=SEQUENCES)
def test_a_sequence_taken_apart_is_the_same_when_it_is_put_together(record: Sequence) -> None:
    apart = SEQUENCE_CONTENTS.claimed(record, CLAIM)
    assert (apart.prompt_token_ids, apart.messages, apart.sampling) == ([], [], record.sampling)
    assert SEQUENCE_CONTENTS.joined(apart, SEQUENCE_CONTENTS.taken(record)) == record


@given(content=st.binary(max_size=30) | JSON_VALUES.map(msgspec.json.encode))
def test_an_object_that_holds_something_else_is_damage_and_nothing_worse(content: bytes) -> None:
    result = Result(id="c", object="o", created=0, model="m", request_id="r", status="completed", claim=CLAIM)
    try:
        joined = RESULT_CONTENTS.joined(result, content)
    except ClaimDamaged:
        return
    assert joined.claim is None


@given(
    body=st.dictionaries(TEXTS | st.sampled_from(sorted(INLINE_FIELDS)), JSON_VALUES, max_size=8),
    max_inline_bytes=st.integers(0, 400),
)
def test_each_field_of_a_body_is_either_in_the_record_or_in_the_object(
    body: dict[str, Any], max_inline_bytes: int
) -> None:
    split = split_body(msgspec.json.encode(body), max_inline_bytes=max_inline_bytes)
    inline, moved = json.loads(msgspec.json.encode(split.inline)), json.loads(split.content)
    assert inline | moved == body
    assert not inline.keys() & moved.keys()
    assert not INLINE_FIELDS & moved.keys()
    left = sum(len(msgspec.json.encode(value)) for name, value in inline.items() if name not in INLINE_FIELDS)
    assert left <= max(max_inline_bytes, 1) or not inline.keys() - INLINE_FIELDS


@given(
    messages=st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": TEXTS}), min_size=1, max_size=3),
    unknown=st.dictionaries(st.sampled_from(["of_tomorrow", "x"]), JSON_VALUES, max_size=2),
    metadata=st.none() | st.dictionaries(TEXTS, JSON_VALUES, max_size=2),
)
def test_a_claimed_request_is_the_request_that_was_written(
    messages: list[dict[str, str]], unknown: dict[str, Any], metadata: dict[str, Any] | None
) -> None:
    body = {"id": "r1", "model": "m", "messages": messages, "metadata": metadata, "stream": False, **unknown}
    value = msgspec.json.encode(body)
    split = split_body(value, max_inline_bytes=0)
    record = decode_request(split.claimed(CLAIM, kind="chat"))
    assert isinstance(record.request, ChatRequest)
    assert (record.request.claim, record.request.stream) == (CLAIM, False)
    inline = msgspec.to_builtins(record.request) | record.unknown_fields
    assert join_body(inline, split.content) == decode_request(value)


FIELD_NAMES = sorted(field.encode_name for field in msgspec.structs.fields(ChatRequest))


@given(
    content=st.binary(max_size=60)
    | st.dictionaries(st.sampled_from([*FIELD_NAMES, "kind", "prompt", "input"]) | TEXTS, JSON_VALUES, max_size=5).map(
        msgspec.json.encode
    ),
    kind=st.sampled_from(["chat", "completion", "embedding", None, 7]),
)
def test_whatever_is_in_an_object_it_is_a_request_or_a_named_fault(content: bytes, kind: object) -> None:
    try:
        decoded = join_body({"kind": kind, "model": "m", "claim": msgspec.to_builtins(CLAIM)}, content)
    except InvalidValue:
        return
    assert decoded.request.claim is None


@pytest.mark.parametrize("name", sorted(INLINE_FIELDS))
def test_what_the_gate_goes_by_is_never_taken_from_an_object(name: str) -> None:
    inline = {"kind": "chat", "model": "m", "claim": msgspec.to_builtins(CLAIM)}
    inline.pop(name, None)
    with pytest.raises(InvalidValue) as raised:
        join_body(inline, msgspec.json.encode({"messages": [{"role": "user", "content": "x"}], name: "x"}))
    assert raised.value.param == name


def test_the_program_of_the_documentation_leaves_all_of_these_in_the_record() -> None:
    program = Path(__file__).parents[2] / "docs" / "clients" / "python" / "large.py"
    found = re.search(r"^INLINE = (\{.*?\})$", program.read_text(), re.DOTALL | re.MULTILINE)
    assert found is not None
    assert ast.literal_eval(found[1]) == INLINE_FIELDS - {"claim"}


def test_all_fields_of_the_envelope_must_be_in_the_record() -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(RequestBase)}
    assert fields | {"kind", "schema", "stream"} == INLINE_FIELDS


@given(content=st.binary(min_size=1, max_size=50), place=st.integers(0, 49), bit=st.integers(0, 7))
def test_one_bit_is_enough_to_be_another_object(content: bytes, place: int, bit: int) -> None:
    claim = claim_for(content, NAMES, tenant="default", now_ms=NOW_MS)
    assert fits(claim, content)
    damaged = bytearray(content)
    damaged[place % len(content)] ^= 1 << bit
    assert not fits(claim, bytes(damaged))
    assert not fits(claim, content + b" ")
    assert not fits(claim, content[:-1])


@given(days=st.integers(-400, 400), ms=st.integers(0, int(DAY_MS) - 1))
def test_a_claim_is_accepted_for_a_day_before_and_after_its_own(days: int, ms: int) -> None:
    midnight = NOW_MS - NOW_MS % DAY_MS
    made = claim_for(b"{}", NAMES, tenant="acme", now_ms=midnight + days * DAY_MS + ms)
    assert (made.object in keys_of(made, NAMES, tenant="acme", accepted_at_ms=NOW_MS)) == (abs(days) <= 1)


@given(age_days=st.floats(0, 30), kept_days=st.floats(0.1, 20), skew=st.integers(-1, 1))
def test_an_object_outlives_every_record_that_may_refer_to_it(age_days: float, kept_days: float, skew: int) -> None:
    """The record is written up to a day after the object's day, and is kept for `kept_days` from then."""
    put_ms = NOW_MS - age_days * DAY_MS
    claim = claim_for(b"{}", NAMES, tenant="acme", now_ms=put_ms + skew * DAY_MS)
    accepted_ms = next(
        time_ms
        for time_ms in (put_ms, put_ms + DAY_MS, put_ms - DAY_MS)
        if claim.object in keys_of(claim, NAMES, tenant="acme", accepted_at_ms=time_ms)
    )
    folder = claim.object.removesuffix(claim.sha256)
    found = collectable([folder], NAMES, kept_ms=kept_days * DAY_MS, now_ms=NOW_MS)
    if accepted_ms + kept_days * DAY_MS > NOW_MS:
        assert not found
    if age_days > kept_days + 4:
        assert found == [folder]


def test_what_is_no_claim_is_left_alone() -> None:
    claim = claim_for(b"{}", NAMES, tenant="acme", now_ms=0)
    old = claim.object.removesuffix(claim.sha256)
    others = [
        NAMES.object_key("sessions/acme/1970-01-01/"),
        f"{claims_prefix(NAMES)}acme/notes/",
        f"{claims_prefix(NAMES)}acme/2026-13-99/",
        f"{claims_prefix(NAMES)}acme/0000-00-00/",
        f"{claims_prefix(NAMES)}acme/9999-12-31/",
        f"{claims_prefix(NAMES)}acme/1970-01-01/more/",
        old.replace("ns/", "another/"),
        f"x{old}",
    ]
    assert collectable([*others, old], NAMES, kept_ms=0, now_ms=NOW_MS) == [old]
    assert is_claimed(claim.object)
    assert not any(map(is_claimed, [f"{old}readme", f"{claim.object}.txt", old]))


def test_a_claim_says_where_and_what() -> None:
    claim = claim_for(b'{"messages":[]}', NAMES, tenant="acme", now_ms=NOW_MS)
    assert claim == ClaimCheck(object=f"ns/claims/acme/2026-11-30/{claim.sha256}", sha256=claim.sha256, num_bytes=15)
