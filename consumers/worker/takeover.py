"""What a new owner of a partition decides of each record that it polls. Pure: records in, decisions out.

Only polled records are decided; ids that are only in the journal are ignored.
"""

from typing import NamedTuple

import msgspec

from consumers.journal import Progress
from schemas.codec import Codec
from schemas.envelope import Natural
from schemas.errors import MalformedRecord

# How long an id that has ended is remembered by broker time: in it, a repeat is a duplicate and not a new request.
DEDUP_WINDOW_MS = 600_000


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata beside a committed offset.

    `epoch` is the owner's takeover. No record of `tokens` below `tokens_low` matters for a record of the input from
    the committed offset on.
    """

    epoch: Natural
    tokens_low: Natural


_CHECKPOINT: Codec[Checkpoint] = Codec(Checkpoint, "json")


class Running(NamedTuple):
    """The owner itself runs this id."""

    input_offset: int


class Gone(NamedTuple):
    """The owner itself has ended this id; its result stands at `result_offset`."""

    input_offset: int
    result_offset: int | None
    ended_at_ms: int


class Untouched(NamedTuple):
    """Run it from the start. `progress` is set where it was admitted before without a token."""

    progress: Progress | None


class Begun(NamedTuple):
    """Go on at the next index of each choice, or write the result that its final deltas have decided."""

    progress: Progress


class Damaged(NamedTuple):
    """Its journal has a gap: it can neither go on nor begin again without a repeat."""

    progress: Progress


class Finished(NamedTuple):
    """This very record was answered: close it."""


class Duplicate(NamedTuple):
    """Another record of the same id was first: point to its result, if it has ended and where that is known."""

    result_offset: int | None = None
    has_ended: bool = False


Decision = Untouched | Begun | Damaged | Finished | Duplicate


def decide(source: str, input_offset: int, progress: Progress | None, known: Running | Gone | None) -> Decision:
    """Decide one member of the record at `input_offset` of `source`.

    `progress` is what the journal said of its id at the takeover, `known` what this owner has done with it since.
    """
    if known is not None:
        return Duplicate(known.result_offset, has_ended=True) if isinstance(known, Gone) else Duplicate()
    if progress is None:
        return Untouched(None)
    if progress.ended is not None:
        is_answer = progress.ended.source == source and progress.ended.input_offset in (None, input_offset)
        return Finished() if is_answer else Duplicate(has_ended=True)
    if progress.source != source:
        return Duplicate()
    if progress.has_gap:
        return Damaged(progress)
    return Begun(progress) if progress.choices else Untouched(progress)


def encode_checkpoint(checkpoint: Checkpoint) -> str:
    """As text for the commit; a few dozen bytes of the 4,000 that Kafka allows."""
    return msgspec.json.encode(checkpoint).decode()


def decode_checkpoint(metadata: str) -> Checkpoint | None:
    """The checkpoint of a commit. None where there is none: then all that is kept must be read."""
    try:
        return _CHECKPOINT.decode(metadata.encode(errors="replace"))
    except MalformedRecord:
        return None
