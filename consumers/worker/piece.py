"""A piece of one choice's stream that has not been sent yet: what the engine gave since the last delta."""

from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.envelope import Status
from schemas.errors import ErrorBody
from schemas.sampling import FinishReason, TokenLogprob
from schemas.tokens import Usage

# With twenty alternatives a token, a delta of this many tokens is some 300 kB; the broker refuses 1 MiB.
MAX_TOKENS_PER_DELTA = 512


class Ending(NamedTuple):
    """How a request ends."""

    status: Status
    error: ErrorBody | None = None


class Closing(NamedTuple):
    """What the last delta of a request adds."""

    ending: Ending
    usage: Usage


@dataclass(slots=True)
class Piece:
    """Consecutive tokens of one choice, from `index` on. A finish reason makes it the choice's last one."""

    choice: int
    index: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    closing: Closing | None = None

    @property
    def is_final(self) -> bool:
        """Whether it is the last of its choice."""
        return self.finish_reason is not None

    def can_take(self, later: "Piece") -> bool:
        """Whether one delta can carry both."""
        return (
            self.choice == later.choice
            and not self.is_final
            and len(self.token_ids) + len(later.token_ids) <= MAX_TOKENS_PER_DELTA
        )

    def take(self, later: "Piece") -> None:
        """Append a later piece of the same choice."""
        self.token_ids += later.token_ids
        self.text += later.text
        self.logprobs += later.logprobs
        self.finish_reason = later.finish_reason
        self.stop_reason = later.stop_reason
        self.closing = later.closing
