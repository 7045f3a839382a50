"""Bytes to records and back. Whatever a topic holds, decoding ends in a record or in an error that names the place.

JSON is used where people and plain tools read or write, MessagePack between our own stages.
"""

import re
from collections.abc import Callable
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from schemas.batches import Batch
from schemas.control import Cancel, DeadLetter, ModelAnnouncement
from schemas.envelope import IDENTIFIER_PATTERN
from schemas.errors import InvalidValue, MalformedRecord
from schemas.foreign import advice_on
from schemas.integers import integer_reader
from schemas.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Request
from schemas.results import ResultRecord
from schemas.sessions import SessionRecord, SessionTurn
from schemas.tokens import JournalRecord
from schemas.turns import Turn

T = TypeVar("T")

# msgspec ends its messages with the path of the fault: "Expected `int`, got `str` - at `$.max_tokens`".
# What msgspec says of an identifier that is none, and what a person understands.
_IDENTIFIER_FAULT = f"Expected 'str' matching regex {IDENTIFIER_PATTERN!r}"
_IDENTIFIER_ADVICE = "Expected letters, digits and ._:@-, at most 128, of which the first is a letter or a digit"

_PATH = re.compile(r"^(?P<what>.*?) - at `(?:key in )?\$?(?P<path>[^`]*)`$", re.DOTALL)

# The field that tells one kind of request from another where the client gave no `kind`.
_TELLING_FIELDS: dict[str, type[ChatRequest | CompletionRequest | EmbeddingRequest]] = {
    "messages": ChatRequest,
    "prompt": CompletionRequest,
    "input": EmbeddingRequest,
}
_KINDS: dict[str, type[ChatRequest | CompletionRequest | EmbeddingRequest]] = {
    "chat": ChatRequest,
    "completion": CompletionRequest,
    "embedding": EmbeddingRequest,
}
_ENVELOPE_ONLY = frozenset({"kind", "schema"})
# Looked up once: asking msgspec for the fields of a type takes longer than decoding a request.
_KNOWN_FIELDS = {
    known: _ENVELOPE_ONLY | {field.encode_name for field in msgspec.structs.fields(known)} for known in _KINDS.values()
}
_INTEGERS = {known: integer_reader(known) for known in _KINDS.values()}


class DecodedRequest(NamedTuple):
    """A request, and the fields of its body that this version does not know."""

    request: Request
    unknown_fields: dict[str, Any]


def decode_request(value: bytes | None) -> DecodedRequest:
    """Decode a record of `requests`.

    Raises:
        MalformedRecord: the bytes are no JSON object.
        InvalidValue: a field is missing, unknown in kind, or has a wrong type or value; `param` is its path.
    """
    return decode_body(_decode_object(value))


def decode_body(fields: dict[str, Any]) -> DecodedRequest:
    """Decode the body of a request from the members of its JSON object. With a claim, some may be in its object.

    Raises:
        InvalidValue: as `decode_request`.
    """
    kind = _request_type(fields)
    # `kind` is set to what was inferred, so that the typed decoding below never has to guess.
    tag = next(name for name, known in _KINDS.items() if known is kind)
    request = _checked(lambda: msgspec.convert({**_INTEGERS[kind](fields), "kind": tag}, type=kind))
    known = _KNOWN_FIELDS[kind]
    return DecodedRequest(request, {name: value for name, value in fields.items() if name not in known})


def _decode_object(value: bytes | None) -> dict[str, Any]:
    if not value:
        raise MalformedRecord("the record has no value; a request is a JSON object with `model` and `messages`")
    try:
        decoded = _parsed(lambda: msgspec.json.decode(value))
    except MalformedRecord as error:
        raise MalformedRecord(error.message + advice_on(value)) from error
    if not isinstance(decoded, dict):
        raise MalformedRecord(f"a request is a JSON object, this is a JSON {_json_kind(decoded)}")
    return decoded


def _request_type(fields: dict[str, Any]) -> type[ChatRequest | CompletionRequest | EmbeddingRequest]:
    kind = fields.get("kind")
    if kind is None:
        found = next((known for field, known in _TELLING_FIELDS.items() if field in fields), None)
        if found is None and fields.get("claim") is not None:
            raise InvalidValue(f"a request with a claim says its `kind`: {', '.join(_KINDS)}", param="kind")
        if found is None:
            raise InvalidValue("a request needs `messages` (chat), `prompt` (completion) or `input` (embedding)")
        return found
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidValue(f"`kind` is one of {', '.join(_KINDS)}", param="kind")
    needed = next(field for field, known in _TELLING_FIELDS.items() if known is _KINDS[kind])
    if needed not in fields and fields.get("claim") is None:
        raise InvalidValue(f"a request of kind {kind} needs `{needed}`", param=needed)
    return _KINDS[kind]


def _json_kind(value: object) -> str:
    names: dict[type, str] = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")


def _parsed(decode: Callable[[], T]) -> T:
    """Run a decoder of untrusted bytes; every way in which it can fail is one error."""
    try:
        return decode()
    except msgspec.DecodeError as error:
        raise MalformedRecord(f"the record cannot be decoded: {error}") from error
    except UnicodeDecodeError as error:
        raise MalformedRecord(f"the record is not valid UTF-8: {error.reason} at byte {error.start}") from error
    except RecursionError as error:
        raise MalformedRecord("the record is nested too deeply") from error


def _checked(convert: Callable[[], T]) -> T:
    """Run a typed conversion; a fault is named by its place, in OpenAI's notation (`messages[0].role`)."""
    try:
        return convert()
    except msgspec.ValidationError as error:
        found = _PATH.match(str(error))
        if found is None:
            raise InvalidValue(str(error)) from error
        path = found["path"].lstrip(".")
        what = found["what"].replace("`", "'").replace(_IDENTIFIER_FAULT, _IDENTIFIER_ADVICE)
        raise InvalidValue(f"{what} (in '{path}')" if path else what, param=path or None) from error
    except RecursionError as error:
        raise InvalidValue("the value is nested too deeply") from error


class Codec(Generic[T]):
    """Encoder and decoder of one kind of record."""

    def __init__(self, record_type: Any, wire: Literal["json", "msgpack"]) -> None:
        wire_format = msgspec.json if wire == "json" else msgspec.msgpack
        self._decoder: Any = wire_format.Decoder(record_type)
        self._encoder = wire_format.Encoder()

    def decode(self, value: bytes | None) -> T:
        """Decode one record's value.

        Raises:
            MalformedRecord: it is not such a record.
        """
        if not value:
            raise MalformedRecord("the record has no value")
        record: T = _parsed(lambda: self._decoder.decode(value))
        return record

    def encode(self, record: T) -> bytes:
        """Encode one record."""
        encoded: bytes = self._encoder.encode(record)
        return encoded


TURN: Codec[Turn] = Codec(Turn, "msgpack")
BATCH: Codec[Batch] = Codec(Batch, "msgpack")
JOURNAL: Codec[JournalRecord] = Codec(JournalRecord, "json")
RESULT: Codec[ResultRecord] = Codec(ResultRecord, "json")
SESSION: Codec[SessionRecord] = Codec(SessionRecord, "json")
SESSION_TURN: Codec[SessionTurn] = Codec(SessionTurn, "json")
CONTROL: Codec[Cancel] = Codec(Cancel, "json")
MODEL: Codec[ModelAnnouncement] = Codec(ModelAnnouncement, "json")
DEAD_LETTER: Codec[DeadLetter] = Codec(DeadLetter, "json")
