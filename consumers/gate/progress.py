"""What is committed beside an offset: which of the records behind it are open, so that the rest is not decided again.

A turn whose heavy fields cannot be put for hours keeps the committed offset where it is, and everything behind it would
be delivered to the next owner once more. What is open is little; it is written in the transaction that closes the rest.
"""

import msgspec

from runtime.ledger import Holes

# Kafka allows 4,096 bytes of metadata (offset.metadata.max.bytes).
MAX_METADATA_BYTES = 3_500


class _Progress(msgspec.Struct, frozen=True):
    """Offsets from the committed one on: each open one from the one before it, and the first of those that all are."""

    open: list[int]
    until: int


def encode_progress(holes: Holes, committed: int) -> str:
    """The metadata; empty where nothing behind the committed offset is done.

    What does not fit counts as open: it may be decided again, as if nothing were written here.
    """
    if holes.until <= committed:
        return ""
    steps = [later - earlier for earlier, later in zip((committed, *holes.offsets), holes.offsets, strict=False)]
    text = _text(steps, holes.until - committed)
    while len(text) > MAX_METADATA_BYTES:
        kept = len(steps) * MAX_METADATA_BYTES // (len(text) + 1)
        steps, until = steps[:kept], sum(steps[: kept + 1])
        text = _text(steps, until)
    return text


def decode_progress(metadata: str, committed: int) -> Holes | None:
    """What `encode_progress` has written; None where nothing is known, also for what was written by others."""
    try:
        progress = msgspec.json.decode(metadata, type=_Progress)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    offsets, offset = [], committed
    for step in progress.open:
        offset += step
        offsets.append(offset)
    return Holes(tuple(offsets), committed + progress.until)


def _text(steps: list[int], until: int) -> str:
    return msgspec.json.encode(_Progress(steps, until)).decode()
