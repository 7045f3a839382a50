"""How often a request's deltas leave. What waits for its turn is one record instead of many, and is lost by no crash:
a successor computes the very same tokens again.
"""

from typing import NamedTuple

from schemas.envelope import Envelope
from schemas.settings import WorkerSettings

_MS_PER_S = 1000


class Pace(NamedTuple):
    """The first delta leaves so long after the first token, later ones at most once an interval. In seconds."""

    first_after_s: float
    interval_s: float


def pace_of(envelope: Envelope, settings: WorkerSettings) -> Pace:
    """The pace of a request: people read interactive streams, programs the others."""
    if not envelope.stream:
        checkpoint_s = settings.checkpoint_interval_ms / _MS_PER_S
        return Pace(checkpoint_s, checkpoint_s)
    is_bulk = envelope.priority_class == "bulk"
    interval_ms = settings.bulk_stream_interval_ms if is_bulk else settings.stream_interval_ms
    return Pace(0.0, interval_ms / _MS_PER_S)
