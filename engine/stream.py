"""What a choice's tokens become on their way out: text, and the reason to end. A function of the token ids alone."""

import msgspec

from engine.sampling import stop_token_ids
from models.detokenizer import IncrementalDetokenizer
from models.stop import StopStrings
from models.tokenizer import Tokenizer
from schemas.errors import ErrorBody
from schemas.sampling import FinishReason, SamplingParams


class Accepted(msgspec.Struct, frozen=True):
    """The text that a token made final, and why the choice ends with it, if it does."""

    text: str
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: ErrorBody | None = None


class ChoiceStream:
    """The output of one choice. Fed with a predecessor's tokens it is where that one was."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, eos_token_ids: tuple[int, ...]) -> None:
        self._params = params
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._stops = StopStrings(params.stop)
        self._stop_token_ids = frozenset(stop_token_ids(params, eos_token_ids))
        self.num_tokens = 0

    def accept(self, token_id: int) -> Accepted:
        """Take the next token. Before `min_tokens` nothing but `max_tokens` ends the choice."""
        self.num_tokens += 1
        may_stop = self.num_tokens > self._params.min_tokens
        if may_stop and token_id in self._stop_token_ids:
            asked_for = token_id in self._params.stop_token_ids
            return Accepted(self.flush(), "stop", token_id if asked_for else None)
        text = self._detokenizer.feed(token_id)
        if may_stop:
            result = self._stops.feed(text)
            if result.stop is not None:
                return Accepted(result.text, "stop", result.stop)
            text = result.text
        if self.num_tokens >= self._params.max_tokens:
            return Accepted(text + self.flush(), "length")
        return Accepted(text)

    def flush(self) -> str:
        """What was held back, when the choice ends for another reason than a stop string."""
        result = self._stops.feed(self._detokenizer.flush())
        return result.text if result.stop is not None else result.text + self._stops.flush()
