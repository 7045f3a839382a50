"""What the gate writes of a request that it does not forward: its terminal record, and the bundle of a broken one."""

from typing import NamedTuple

from consumers.gate.arrival import Arrival, Identity, as_identifier
from schemas.control import DeadLetter
from schemas.envelope import Envelope, Status
from schemas.errors import DeadlineExceeded, ErrorBody, HeadraceError, RequestCancelled
from schemas.results import Result
from schemas.turns import Turn


class _Shape(NamedTuple):
    id_prefix: str
    object: str


# How OpenAI names the answers to each kind of request.
_SHAPES = {
    "chat": _Shape("chatcmpl", "chat.completion"),
    "completion": _Shape("cmpl", "text_completion"),
    "embedding": _Shape("embd", "list"),
}


# What is named as the model may be as long as the request; the answer must fit a record all the same.
_MAX_MODEL_LENGTH = 200


def refused(
    envelope: Envelope, error: ErrorBody, *, status: Status = "failed", kind: str = "chat", model: str = ""
) -> Result:
    """The terminal record of a request that was never forwarded."""
    shape = _SHAPES.get(kind, _SHAPES["chat"])
    return Result(
        id=f"{shape.id_prefix}-{envelope.request_id}",
        object=shape.object,
        created=envelope.accepted_at_ms // 1000,
        model=model[:_MAX_MODEL_LENGTH],
        request_id=envelope.request_id,
        status=status,
        error=error.shortened(),
        tenant=envelope.tenant,
        session=envelope.session,
        traceparent=envelope.traceparent,
    )


def refused_turn(turn: Turn, error: HeadraceError, *, status: Status = "failed") -> Result:
    """The terminal record of an admitted request that ends before it is forwarded."""
    kind = str(turn.request.__struct_config__.tag)
    return refused(turn.envelope, error.body, status=status, kind=kind, model=turn.request.model)


def expired(turn: Turn) -> Result:
    """The terminal record of a request whose deadline passed before it was forwarded."""
    error = DeadlineExceeded("the deadline passed before the request was begun; send it again with a later one")
    return refused_turn(turn, error, status="expired")


def cancelled(turn: Turn, error: RequestCancelled) -> Result:
    """The terminal record of a request that was cancelled before it was forwarded."""
    return refused_turn(turn, error, status="cancelled")


def envelope_of(arrival: Arrival, who: Identity) -> Envelope:
    """What the answer to a record that is no valid request travels under."""
    return Envelope(
        request_id=who.request_id,
        # Where the body names nobody, whoever reads by the key that the record was written with finds the answer.
        key=who.key or as_identifier((arrival.key or b"").decode("utf-8", "replace")) or who.request_id,
        accepted_at_ms=arrival.timestamp_ms,
        deadline_ms=arrival.timestamp_ms,
        traceparent=arrival.traceparent,
        tenant=who.tenant,
        session=who.session,
    )


def dead_letter(arrival: Arrival, request_id: str, error: HeadraceError) -> DeadLetter:
    """All that is needed to see the fault again: the record as it was, where it was, what was wrong."""
    return DeadLetter(
        topic=arrival.topic,
        partition=arrival.partition,
        offset=arrival.offset,
        timestamp_ms=arrival.timestamp_ms,
        stage="gate",
        error=error.body,
        request_id=request_id,
        key=arrival.key,
        value=arrival.value,
        headers=list(arrival.headers),
    )
