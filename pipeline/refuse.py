"""Errors to refusals. A stage decides nothing: the refusal travels as a batch does, and a worker ends the request."""

from collections.abc import Iterable

from runtime.tracing import Headers
from runtime.unreadable import envelope_of_unreadable
from schemas.batches import Refusal
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
    headers: Headers,
    timestamp_ms: int,
    max_age_s: float,
    lane: Lane,
    error: HeadraceError,
) -> Refusal | None:
    """The refusal of a turn record that cannot be decoded, from its key and headers; None if these do not suffice."""
    envelope = envelope_of_unreadable(
        key=key, headers=headers, timestamp_ms=timestamp_ms, max_age_s=max_age_s, lane=lane
    )
    return Refusal(envelope=envelope, model=UNKNOWN, stage=STAGE, error=error.body) if envelope else None
