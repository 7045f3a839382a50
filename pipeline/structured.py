"""From the fields that ask for structured output to the one structure that the engine holds an answer to."""

import json
from typing import Any, NamedTuple

import msgspec

from schemas.errors import InvalidValue, RequestTooLarge
from schemas.requests import ChatRequest, CompletionRequest
from schemas.structured import (
    MAX_STRUCTURE_BYTES,
    JsonSchemaFormat,
    OutputStructure,
    ResponseFormat,
    StructuredOutputs,
    TextFormat,
)

_ANY_OBJECT = {"type": "object"}


class AskedStructure(NamedTuple):
    """What an answer must be, and the path of the field that says so."""

    structure: OutputStructure
    param: str


def asked_structure(request: ChatRequest | CompletionRequest) -> AskedStructure | None:
    """What the text of the answer must be; None where it is free.

    Whether it can be enforced is another question: `models.structured` compiles it.

    Raises:
        InvalidValue: fields contradict each other, or there is no structure where one was announced.
        RequestTooLarge: it is larger than MAX_STRUCTURE_BYTES.
    """
    found = [_of_format(request.response_format), _of_outputs(request.structured_outputs)]
    asked = [one for one in found if one is not None]
    if len(asked) > 1:
        raise InvalidValue(
            "`response_format` and `structured_outputs` both say what the answer must be: leave one out",
            param="structured_outputs",
        )
    for one in asked:
        _check(one, request)
    return asked[0] if asked else None


def _of_format(response_format: ResponseFormat | None) -> AskedStructure | None:
    if response_format is None or isinstance(response_format, TextFormat):
        return None
    if isinstance(response_format, JsonSchemaFormat):
        return _json(response_format.json_schema.schema, "response_format.json_schema.schema")
    return _json(_ANY_OBJECT, "response_format")


def _of_outputs(outputs: StructuredOutputs | None) -> AskedStructure | None:
    if outputs is None:
        return None
    given = [name for name in outputs.__struct_fields__ if getattr(outputs, name) not in (None, False)]
    if len(given) != 1:
        told = "more than one of" if given else "none of"
        known = ", ".join(outputs.__struct_fields__)
        raise InvalidValue(f"`structured_outputs` has {told} {known}: give exactly one", param="structured_outputs")
    (name,) = given
    param = f"structured_outputs.{name}"
    if outputs.choice is not None:
        return AskedStructure(OutputStructure(kind="choice", source=_text(outputs.choice)), param)
    if outputs.regex is not None:
        return AskedStructure(OutputStructure(kind="regex", source=outputs.regex), param)
    return _json(_ANY_OBJECT if outputs.json is None else _parsed(outputs.json, param), param)


def _json(schema: dict[str, Any], param: str) -> AskedStructure:
    try:
        return AskedStructure(OutputStructure(kind="json", source=_text(schema)), param)
    except RecursionError as error:
        raise InvalidValue("the JSON Schema is nested too deeply", param=param) from error


def _text(value: Any) -> str:
    """Compact, and in the order of the client: properties are written in the order of the schema."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _parsed(schema: dict[str, Any] | str, param: str) -> dict[str, Any]:
    if isinstance(schema, dict):
        return schema
    try:
        parsed = msgspec.json.decode(schema)
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"the JSON Schema is no JSON: {error}", param=param) from error
    if not isinstance(parsed, dict):
        raise InvalidValue("a JSON Schema is a JSON object", param=param)
    return parsed


def _check(asked: AskedStructure, request: ChatRequest | CompletionRequest) -> None:
    num_bytes = len(asked.structure.source.encode())
    if num_bytes > MAX_STRUCTURE_BYTES:
        raise RequestTooLarge(
            f"the structure of the answer has {num_bytes} bytes; at most {MAX_STRUCTURE_BYTES} are accepted",
            param=asked.param,
        )
    if request.ignore_eos:
        raise InvalidValue(
            f"`ignore_eos` lets an answer go on after its end, and `{asked.param}` says where that is: leave one out",
            param="ignore_eos",
        )
