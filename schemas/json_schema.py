"""The records that others read or write, as JSON Schema 2020-12: what a topic accepts, no more and no less."""

import typing
from collections.abc import Sequence
from typing import Any

import msgspec

from schemas.control import Cancel, DeadLetter, ModelAnnouncement
from schemas.examples import examples_of
from schemas.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Request
from schemas.results import ResultRecord
from schemas.sessions import SessionRecord, SessionTurn
from schemas.tokens import JournalRecord

DIALECT = "https://json-schema.org/draft/2020-12/schema"

# RFC 4648 with padding, which msgspec insists on; `contentEncoding` alone is no more than a remark to validators.
_BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$(?!\n)"

JsonSchema = dict[str, Any]
Kind = type[msgspec.Struct]

# In this order a body's kind is told where it does not say: the first field that is there decides (schemas/codec.py).
_TOLD_BY: tuple[tuple[Kind, str], ...] = (
    (ChatRequest, "messages"),
    (CompletionRequest, "prompt"),
    (EmbeddingRequest, "input"),
)


class PublishedRecords(msgspec.Struct, kw_only=True, frozen=True):
    """The kinds of record in one place, and the file that describes them."""

    file: str
    title: str
    kinds: Sequence[Kind]


def _kinds(union: Any) -> tuple[Kind, ...]:
    return typing.get_args(union)


REQUESTS = PublishedRecords(file="requests.json", title="Records of requests, from clients", kinds=_kinds(Request))
TOKENS = PublishedRecords(file="tokens.json", title="Records of tokens: deltas and marks", kinds=_kinds(JournalRecord))
RESULTS = PublishedRecords(file="results.json", title="Records of results", kinds=_kinds(ResultRecord))
SESSIONS = PublishedRecords(file="sessions.json", title="Records of sessions", kinds=_kinds(SessionRecord))
CONTROL = PublishedRecords(file="control.json", title="Records of control, from clients", kinds=(Cancel,))
MODELS = PublishedRecords(file="models.json", title="Records of models", kinds=(ModelAnnouncement,))
DEAD_LETTERS = PublishedRecords(file="dead-letters.json", title="Records of dead-letters", kinds=(DeadLetter,))
SESSION_OBJECTS = PublishedRecords(
    file="session-turn.json", title="Objects in the bucket: one turn of a session", kinds=(SessionTurn,)
)
PUBLISHED = (REQUESTS, TOKENS, RESULTS, SESSIONS, CONTROL, MODELS, DEAD_LETTERS, SESSION_OBJECTS)


def definitions(places: Sequence[PublishedRecords], ref_template: str) -> dict[str, JsonSchema]:
    """Schemas of the records and of all that they hold, by name; references follow `ref_template`."""
    kinds = list(dict.fromkeys(kind for records in places for kind in records.kinds))
    _, found = msgspec.json.schema_components(kinds, ref_template=ref_template)
    for kind in kinds:
        found[kind.__name__]["examples"] = [to_json(example) for example in examples_of(kind)]
    for records in places:
        if records is REQUESTS:
            _let_bodies_tell_their_kind(found)
        elif len(records.kinds) == 1:
            _let_the_tag_be_absent(records.kinds[0], found)
    _hold_to_base64(found)
    _drop_discriminators(found)
    return found


def document(records: PublishedRecords) -> JsonSchema:
    """The JSON Schema of whatever may stand in one place."""
    return {
        "$schema": DIALECT,
        "title": records.title,
        "anyOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in records.kinds],
        "$defs": definitions([records], "#/$defs/{name}"),
    }


def to_json(record: msgspec.Struct) -> dict[str, Any]:
    """A record as the JSON object that travels."""
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(record))
    return decoded


def _let_bodies_tell_their_kind(found: dict[str, JsonSchema]) -> None:
    """Make `kind` optional, as it is on `requests`: without it the first field that is there decides.

    That field may be in the object of a claim; then `kind` is named.
    """
    for place, (kind, telling) in enumerate(_TOLD_BY):
        schema = found[kind.__name__]
        named = {"claim": {"type": "object"}, "kind": {"const": kind.__struct_config__.tag}}
        schema["anyOf"] = [{"required": [telling]}, {"required": ["claim", "kind"], "properties": named}]
        schema["required"].remove("kind")
        schema["properties"]["kind"]["enum"].append(None)
        if told_before := [field for _, field in _TOLD_BY[:place]]:
            schema["if"] = {"properties": {"kind": {"const": None}}}
            schema["then"] = {"not": {"anyOf": [{"required": [field]} for field in told_before]}}


def _let_the_tag_be_absent(kind: Kind, found: dict[str, JsonSchema]) -> None:
    """Where only one kind of record may stand, a writer need not name it."""
    found[kind.__name__]["required"].remove(str(kind.__struct_config__.tag_field))


def _hold_to_base64(schema: Any) -> None:
    """Give every place that holds bytes the pattern of base64."""
    if isinstance(schema, dict) and schema.get("contentEncoding") == "base64":
        schema["pattern"] = _BASE64
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _hold_to_base64(inner)


def _drop_discriminators(schema: Any) -> None:
    """Leave OpenAPI's word for it out of unions: each member has its tag as an `enum`, and AsyncAPI takes a string."""
    if isinstance(schema, dict) and "mapping" in schema.get("discriminator", {}):
        del schema["discriminator"]
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _drop_discriminators(inner)
