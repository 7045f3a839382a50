"""Errors to refusals. A stage decides nothing: the refusal travels as a batch does, and a worker ends the request."""

from collections.abc import Iterable, Sequence

from runtime.tracing import traceparent_of
from schemas.batches import Refusal
from schemas.envelope import DEFAULT_TENANT, Envelope
from schemas.errors import HeadraceError, UnknownModel
from schemas.names import Lane
from schemas.requests import CompletionRequest
from schemas.turns import Turn

STAGE = "pipeline"

# Where neither the record nor its headers say which model was asked for.
UNKNOWN = ""


def refusal(turn: Turn, error: HeadraceError) -> Refusal:
    """The refusal of a turn, with the error as its client will see it."""
    return Refusal(
        envelope=turn.envelope,
        model=turn.request.model,
        stage=STAGE,
        error=error.body,
        chat=not isinstance(turn.request, CompletionRequest),
    )


def unknown_model(model: str, served: Iterable[str]) -> UnknownModel:
    """The error for a model that nobody serves; it lists the ones that are."""
    return UnknownModel(f"model {model!r} is not served; served are: {', '.join(sorted(served))}", param="model")


def refusal_of_unreadable(
    *,
    key: bytes | None,
    headers: Sequence[tuple[str, bytes]],
    timestamp_ms: int,
    max_age_s: float,
    lane: Lane,
    error: HeadraceError,
) -> Refusal | None:
    """The refusal of a turn record that cannot be decoded, from its key and headers; None if these do not suffice.

    Only a fault of our own or another version's writer makes such a record, and its request must end all the same. The
    key is the session id where it is not the request id (the rule of canonical keys).
    """
    known = {name: value.decode("utf-8", "replace") for name, value in headers}
    request_id = known.get("ce_id")
    if not key or not request_id:
        return None
    canonical = key.decode("utf-8", "replace")
    envelope = Envelope(
        request_id=request_id,
        key=canonical,
        accepted_at_ms=timestamp_ms,
        deadline_ms=timestamp_ms + int(max_age_s * 1000),
        traceparent=traceparent_of(headers),
        tenant=known.get("tenant", DEFAULT_TENANT),
        session=None if canonical == request_id else canonical,
        priority_class=lane,
    )
    return Refusal(envelope=envelope, model=UNKNOWN, stage=STAGE, error=error.body)
