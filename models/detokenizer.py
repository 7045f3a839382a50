"""Turns token ids into text as they come, without ever showing half a code point."""

import codecs

from models.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Text of one output sequence, token by token.

    All texts from `feed` with the one from `flush` are exactly `tokenizer.decode(ids)`. The prompt takes no part: an
    output is decoded by itself, so nothing of the prompt can leak into it, and the same ids always give the same text.
    A successor of a dead worker rebuilds the state by feeding the ids that are in the log.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_token_ids if skip_special else frozenset[int]()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token_id: int) -> str:
        """The text that is final after this token; an unfinished code point is held back."""
        if token_id in self._skipped:
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """What was held back, at the end of the output: U+FFFD for an unfinished code point."""
        return self._decoder.decode(b"", final=True)
