"""A float that is an integer is one, wherever an integer is asked for and nowhere else."""

import json
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.codec import decode_request
from schemas.errors import InvalidValue
from schemas.integers import MAX_EXACT
from schemas.requests import ChatRequest, CompletionRequest

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
# As the published types say it: every field of a request that asks for an integer or for a list of them.
INTEGERS = [
    (kind, field.encode_name, "list" in str(field.type))
    for kind in (ChatRequest, CompletionRequest)
    for field in msgspec.structs.fields(kind)
    if re.search(r"\bint\b", str(field.type)) and "float" not in str(field.type)
]


def body_of(kind: type, **fields: Any) -> bytes:
    base = CHAT if kind is ChatRequest else {"model": "m", "prompt": "hello"}
    return json.dumps({**base, **fields}).encode()


def test_the_fields_that_ask_for_integers_are_found() -> None:
    names = {name for _, name, _ in INTEGERS}
    assert {"max_tokens", "n", "seed", "top_k", "deadline_ms", "stop_token_ids", "prompt", "priority"} <= names
    assert not {"temperature", "logit_bias", "metadata", "ttl_s"} & names


@pytest.mark.parametrize(("kind", "name", "is_list"), INTEGERS)
def test_every_integer_may_be_written_as_a_float(kind: type, name: str, is_list: bool) -> None:
    request = decode_request(body_of(kind, **{name: [3.0, 4] if is_list else 3.0})).request
    field = next(one.name for one in msgspec.structs.fields(kind) if one.encode_name == name)
    value = getattr(request, field)
    assert value == ([3, 4] if is_list else 3)
    assert all(type(number) is int for number in (value if is_list else [value]))


@pytest.mark.parametrize("value", [64.5, 1e300, -1e300, float(2 * MAX_EXACT), True, "64", [64.0]])
def test_what_is_no_exact_integer_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidValue) as caught:
        decode_request(body_of(ChatRequest, max_tokens=value))
    assert caught.value.param == "max_tokens"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_number_changes_its_value(number: float) -> None:
    try:
        request = decode_request(body_of(ChatRequest, seed=number, min_tokens=0.0)).request
    except InvalidValue as error:
        assert error.param == "seed"  # noqa: PT017 - only one of two fields may be at fault
        assert not number.is_integer() or not 0 <= number <= MAX_EXACT
        return
    assert isinstance(request, ChatRequest)
    assert request.seed == number


def test_what_asks_for_no_integer_is_left_as_it_was_written() -> None:
    decoded = decode_request(body_of(ChatRequest, temperature=1.0, metadata={"a": 1.0}, x_future=[2.0]))
    assert isinstance(decoded.request, ChatRequest)
    assert decoded.request.metadata is not None
    kept = [decoded.request.temperature, decoded.request.metadata["a"], decoded.unknown_fields["x_future"][0]]
    assert [type(number) for number in kept] == [float] * 3
