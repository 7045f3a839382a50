"""What becomes of a record on `requests`. Pure: record and time in, one decision out; there are no bytes that raise."""

from typing import NamedTuple

from consumers.gate.arrival import Arrival, Identity, identify
from consumers.gate.refusals import dead_letter, envelope_of, expired, refused
from runtime.headers import REROUTED_FROM
from runtime.kafka import partition_for
from runtime.tracing import HEADER as TRACEPARENT
from runtime.tracing import Headers
from schemas.bodies import split_body
from schemas.claims import MAX_CLAIMED_BYTES, MAX_INLINE_BYTES, ClaimCheck, claim_for, keys_of
from schemas.codec import TURN, decode_request
from schemas.control import DeadLetter
from schemas.envelope import Envelope
from schemas.errors import InvalidValue, MalformedRecord, RequestError, RequestTooLarge
from schemas.names import Names
from schemas.passing import passed_on
from schemas.results import Result
from schemas.served import ServedRequest, served
from schemas.settings import Settings
from schemas.turns import Turn

# What is copied to its right partition grows by two headers, and must fit as well.
MAX_REROUTED_BYTES = 1_000_000

_MS_PER_S = 1000


class AdmissionRules(NamedTuple):
    """The settings that admission goes by."""

    num_partitions: int
    default_ttl_s: float
    max_age_s: float
    names: Names = Names()
    max_inline_bytes: int = MAX_INLINE_BYTES


class Forward(NamedTuple):
    """Pass it on. `value` is the encoded turn, without the base of its session."""

    turn: Turn
    value: bytes


class Deposit(NamedTuple):
    """Put `content` into object storage, then pass on `turn`, which carries the claim in place of its heavy fields."""

    turn: Turn
    value: bytes
    claim: ClaimCheck
    content: bytes


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


Decision = Forward | Deposit | Reroute | Refuse


def rules_of(settings: Settings) -> AdmissionRules:
    """The rules that the settings ask for."""
    names = Names(settings.topics.namespace, settings.topics.generation)
    return AdmissionRules(settings.topics.partitions, settings.gate.default_ttl_s, settings.gate.max_age_s, names)


def admit(arrival: Arrival, rules: AdmissionRules, *, now_ms: float) -> Decision:
    """Decide one record. `now_ms` is broker time; a request whose deadline has passed is not begun."""
    who = identify(arrival)
    try:
        if (place := _right_place(arrival, who, rules)) is not None:
            return place
        turn = _turn(arrival, who, arrival.value, rules)
        value = _encode(turn)
        if now_ms >= turn.envelope.deadline_ms:
            return Refuse(turn.envelope, expired(turn))
        is_light = len(value) <= rules.max_inline_bytes
        return Forward(turn, value) if is_light else _deposit(arrival, who, turn, rules)
    except RequestError as error:
        return _refuse(arrival, who, error)


def _turn(arrival: Arrival, who: Identity, value: bytes | None, rules: AdmissionRules) -> Turn:
    decoded = decode_request(value)
    request = served(decoded.request)
    envelope = _envelope(arrival, who, request, rules)
    if request.claim is not None:
        _check(request.claim, envelope, rules.names)
    return Turn(envelope=envelope, request=request, unknown_fields=decoded.unknown_fields)


def _check(claim: ClaimCheck, envelope: Envelope, names: Names) -> None:
    if claim.num_bytes > MAX_CLAIMED_BYTES:
        raise RequestTooLarge(
            f"the object of the claim has {claim.num_bytes} bytes; at most {MAX_CLAIMED_BYTES} are read",
            param="claim.num_bytes",
        )
    allowed = keys_of(claim, names, tenant=envelope.tenant, accepted_at_ms=envelope.accepted_at_ms)
    if claim.object not in allowed:
        raise InvalidValue(
            f"the object of this claim must be named {allowed[0]!r}: after the tenant, the day (UTC) and its SHA-256",
            param="claim.object",
        )


def _deposit(arrival: Arrival, who: Identity, turn: Turn, rules: AdmissionRules) -> Deposit:
    """The same request with its heavy fields in an object; key and bytes follow from the record that arrived."""
    if turn.request.claim is not None:
        raise RequestTooLarge(
            f"beside its claim the request has more than {rules.max_inline_bytes} bytes: move more into the object"
        )
    body = split_body(arrival.value or b"", max_inline_bytes=rules.max_inline_bytes)
    claim = claim_for(body.content, rules.names, tenant=turn.envelope.tenant, now_ms=arrival.timestamp_ms)
    kind = str(turn.request.__struct_config__.tag)
    claimed = _turn(arrival, who, body.claimed(claim, kind=kind), rules)
    return Deposit(claimed, _encode(claimed), claim, body.content)


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
    return passed_on(lambda: TURN.encode(turn), turn.request, turn.unknown_fields)


def _refuse(arrival: Arrival, who: Identity, error: RequestError) -> Refuse:
    envelope = envelope_of(arrival, who)
    result = refused(envelope, error.body, kind=who.kind, model=who.model)
    is_malformed = isinstance(error, MalformedRecord)
    return Refuse(envelope, result, dead_letter(arrival, who.request_id, error) if is_malformed else None)
