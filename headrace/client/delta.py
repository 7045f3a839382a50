"""What a reader of a stream gets: some text, with its place in the stream."""

import msgspec

from schemas.sampling import FinishReason


class Delta(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A piece of one choice's answer. `index` is the place of `token_ids[0]` in its stream, counted from 0.

    `text` may be empty while a character is incomplete. The last delta of a choice has a finish reason, with or
    without tokens. Joined in order, the deltas of a choice are its whole answer, without gap or repeat.
    """

    request_id: str
    index: int
    text: str
    choice: int = 0
    token_ids: list[int] = []
    finish_reason: FinishReason | None = None

    @property
    def next_index(self) -> int:
        """The index of the next delta of this choice: where `tail` goes on."""
        return self.index + len(self.token_ids)
