"""The heavy part of our own records, which becomes the object of a claim check where a record would be too large."""

from typing import Generic, TypeVar

import msgspec

from schemas.batches import Sequence
from schemas.claims import ClaimCheck
from schemas.errors import ClaimDamaged
from schemas.requests import Message
from schemas.results import Result, ResultChoice


class ResultContent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What moves out of a result; status, usage, error, timings and ids stay."""

    choices: list[ResultChoice] = []
    messages: list[Message] = []
    prompt_token_ids: list[int] = []


class SequenceContent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What moves out of a sequence."""

    prompt_token_ids: list[int] = []
    messages: list[Message] = []


RecordT = TypeVar("RecordT", Result, Sequence)


class Contents(Generic[RecordT]):
    """Takes the heavy fields out of one kind of record, and puts them back. `joined(claimed(x), taken(x))` is x."""

    def __init__(self, content_type: type[msgspec.Struct]) -> None:
        self._type = content_type
        self._decoder = msgspec.json.Decoder(content_type)
        self._names = content_type.__struct_fields__

    def taken(self, record: RecordT) -> bytes:
        """The object: a JSON object whose members are the heavy fields."""
        return msgspec.json.encode(self._type(**self._fields(record)))

    def claimed(self, record: RecordT, claim: ClaimCheck) -> RecordT:
        """The record without them."""
        return msgspec.structs.replace(record, claim=claim, **self._fields(self._type()))

    def joined(self, record: RecordT, content: bytes) -> RecordT:
        """The whole record again.

        Raises:
            ClaimDamaged: the object holds something else.
        """
        try:
            decoded = self._decoder.decode(content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ClaimDamaged(f"the object of a claim does not hold what its record says: {error}") from error
        return msgspec.structs.replace(record, claim=None, **self._fields(decoded))

    def _fields(self, holder: msgspec.Struct) -> dict[str, object]:
        return {name: getattr(holder, name) for name in self._names}


RESULT_CONTENTS: Contents[Result] = Contents(ResultContent)
SEQUENCE_CONTENTS: Contents[Sequence] = Contents(SequenceContent)
