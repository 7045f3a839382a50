"""A client's arguments as the record that goes to the broker; what is wrong in them is said before anything is sent."""

import json
from typing import Any, cast

import pytest

from headrace.client.messages import RequestOptions, encode_chat
from schemas.errors import InvalidValue

SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"const": "é"}}, "required": ["z", "a"]}


def sent(**options: Any) -> dict[str, Any]:
    given = cast(RequestOptions, options)
    request = encode_chat("hi", model="m", tenant="default", session=None, request_id="r", options=given)
    body: dict[str, Any] = json.loads(request.value)
    return body


@pytest.mark.parametrize(
    "options",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"choice": ["yes", "no"]}},
    ],
)
def test_the_form_of_the_answer_goes_as_it_was_given(options: dict[str, Any]) -> None:
    body = sent(**options)
    assert {name: body[name] for name in options} == options
    # A dict compares without its order; the order of the properties is that of the answer.
    assert json.dumps(body[next(iter(options))]) == json.dumps(next(iter(options.values())))


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": ""}}}, "response_format.json_schema.name"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs"),
    ],
)
def test_a_form_that_is_none_is_refused_at_once(options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        sent(**options)
    assert caught.value.param == param
