"""What becomes of a record on `requests`. Pure: record and time in, one decision out; there are no bytes that raise."""

from typing import Any, NamedTuple

from consumers.gate.arrival import Arrival, Identity, identify
from consumers.gate.refusals import dead_letter, envelope_of, expired, refused
from runtime.headers import REROUTED_FROM
from runtime.kafka import partition_for
from runtime.tracing import HEADER as TRACEPARENT
from runtime.tracing import Headers
from schemas.codec import TURN, decode_request
from schemas.control import DeadLetter
from schemas.envelope import Envelope
from schemas.errors import (
    InvalidValue,
    MalformedRecord,
    RequestError,
    RequestTooLarge,
    Unsupported,
)
from schemas.requests import ChatRequest, CompletionRequest, EmbeddingRequest, Request
from schemas.results import Result
from schemas.settings import Settings
from schemas.turns import Turn

# A parked turn is base64 inside JSON, four bytes for three, and must still fit Kafka's 1 MiB.
MAX_TURN_BYTES = 512 * 1024
# What is copied to its right partition grows by two headers, and must fit as well.
MAX_REROUTED_BYTES = 1_000_000
# The decoders of later stages recurse on a deeper stack than this one: a value at their limit must not get there.
MAX_NESTING = 100

_MS_PER_S = 1000


class AdmissionRules(NamedTuple):
    """The settings that admission goes by."""

    num_partitions: int
    default_ttl_s: float
    max_age_s: float


class Forward(NamedTuple):
    """Pass it on. `value` is the encoded turn, without the base of its session."""

    turn: Turn
    value: bytes


class Reroute(NamedTuple):
    """Write it to its topic again, where its key belongs."""

    partition: int
    key: bytes
    headers: Headers


class Refuse(NamedTuple):
    """End it here."""

    envelope: Envelope
    result: Result
    dead_letter: DeadLetter | None = None


Decision = Forward | Reroute | Refuse
ServedRequest = ChatRequest | CompletionRequest


def rules_of(settings: Settings) -> AdmissionRules:
    """The rules that the settings ask for."""
    return AdmissionRules(settings.topics.partitions, settings.gate.default_ttl_s, settings.gate.max_age_s)


def admit(arrival: Arrival, rules: AdmissionRules, *, now_ms: float) -> Decision:
    """Decide one record. `now_ms` is broker time; a request whose deadline has passed is not begun."""
    who = identify(arrival)
    try:
        if (place := _right_place(arrival, who, rules)) is not None:
            return place
        decoded = decode_request(arrival.value)
        turn = Turn(
            envelope=_envelope(arrival, who, _served(decoded.request), rules),
            request=decoded.request,
            unknown_fields=decoded.unknown_fields,
        )
        value = _encode(turn)
    except RequestError as error:
        return _refuse(arrival, who, error)
    if now_ms >= turn.envelope.deadline_ms:
        return Refuse(turn.envelope, expired(turn))
    return Forward(turn, value)


def _right_place(arrival: Arrival, who: Identity, rules: AdmissionRules) -> Reroute | None:
    if who.key is None:
        return None
    key = who.key.encode()
    partition = partition_for(key, rules.num_partitions)
    if (arrival.key, arrival.partition) == (key, partition):
        return None
    if arrival.rerouted_from is not None:
        raise InvalidValue(
            f"a record with the header {REROUTED_FROM} belongs in partition {partition} under its own key"
        )
    if arrival.num_bytes > MAX_REROUTED_BYTES:
        raise RequestTooLarge(
            f"{arrival.num_bytes} bytes are too many to be moved to partition {partition}: produce it there, "
            f"with the key {who.key!r}"
        )
    kept = [header for header in arrival.headers if header[0] != TRACEPARENT]
    moved = [(TRACEPARENT, arrival.traceparent.encode()), (REROUTED_FROM, arrival.position.encode())]
    return Reroute(partition, key, [*kept, *moved])


def _served(request: Request) -> ServedRequest:
    """The request, if it asks for nothing that is not served yet."""
    if isinstance(request, EmbeddingRequest):
        raise Unsupported("embeddings are not served yet; send `messages` (chat) or `prompt` (completion)")
    if not isinstance(request, ChatRequest):
        return request
    if request.tools:
        raise Unsupported("tools are not supported yet; leave `tools` out", param="tools")
    if request.tool_choice not in (None, "none", "auto"):
        raise Unsupported("tools are not supported yet; leave `tool_choice` out", param="tool_choice")
    if request.response_format not in (None, {"type": "text"}):
        raise Unsupported("only the response_format {'type': 'text'} is supported yet", param="response_format")
    return request


def _envelope(arrival: Arrival, who: Identity, request: ServedRequest, rules: AdmissionRules) -> Envelope:
    ttl_s = min(rules.default_ttl_s if request.ttl_s is None else request.ttl_s, rules.max_age_s)
    deadline_ms = arrival.timestamp_ms + int(ttl_s * _MS_PER_S)
    if request.deadline_ms is not None:
        deadline_ms = min(deadline_ms, request.deadline_ms)
    return Envelope(
        request_id=who.request_id,
        key=request.session or who.request_id,
        accepted_at_ms=arrival.timestamp_ms,
        deadline_ms=deadline_ms,
        traceparent=arrival.traceparent,
        tenant=request.tenant,
        session=request.session,
        priority_class="bulk" if arrival.lane == "bulk" else request.priority_class,
        priority=request.priority,
        stream=request.stream,
    )


def _encode(turn: Turn) -> bytes:
    metadata = None if isinstance(turn.request, EmbeddingRequest) else turn.request.metadata
    if _nesting_exceeds([turn.unknown_fields, metadata], MAX_NESTING):
        raise InvalidValue(f"a field is nested more than {MAX_NESTING} levels deep")
    try:
        value = TURN.encode(turn)
    except (OverflowError, ValueError, RecursionError) as error:
        # JSON has integers of any size, MessagePack has 64 bits.
        raise InvalidValue(f"a value cannot be passed on: {error}") from error
    if len(value) > MAX_TURN_BYTES:
        raise RequestTooLarge(f"the request has {len(value)} bytes; at most {MAX_TURN_BYTES} are accepted")
    return value


def _nesting_exceeds(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    return levels == 0 or any(_nesting_exceeds(item, levels - 1) for item in value)


def _refuse(arrival: Arrival, who: Identity, error: RequestError) -> Refuse:
    envelope = envelope_of(arrival, who)
    result = refused(envelope, error.body, kind=who.kind, model=who.model)
    is_malformed = isinstance(error, MalformedRecord)
    return Refuse(envelope, result, dead_letter(arrival, who.request_id, error) if is_malformed else None)
