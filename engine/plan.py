"""What one step does, as data: the scheduler writes it, every executor rank reads the same bytes and does the same."""

import msgspec

from schemas.sampling import SamplingParams, TokenLogprob


class BlockCopy(msgspec.Struct, frozen=True, array_like=True):
    """Copy a block before the step's rows are computed."""

    source: int
    destination: int


class SequenceStart(msgspec.Struct, frozen=True):
    """A sequence enters: what sampling must know of it.

    `token_ids` are the prompt and the output so far; `is_first` is false when it comes back after a preemption.
    """

    sequence_id: int
    choice: int
    num_prompt: int
    token_ids: list[int]
    sampling: SamplingParams
    is_first: bool = True


class SequenceStep(msgspec.Struct, frozen=True):
    """Rows of one sequence: `token_ids` at positions `start` and on, then `draft`, with KV in `block_table`.

    `is_sampled`: the logits of the last row of `token_ids` give the sequence's next token, and those of each row of
    `draft`, which is empty otherwise, the token after it if the draft is right up to there.
    """

    sequence_id: int
    start: int
    token_ids: list[int]
    block_table: list[int]
    is_sampled: bool
    draft: list[int] = []

    @property
    def row_token_ids(self) -> list[int]:
        """The tokens of all rows."""
        return self.token_ids + self.draft

    @property
    def num_rows(self) -> int:
        """Rows to compute."""
        return len(self.token_ids) + len(self.draft)

    @property
    def num_sampled(self) -> int:
        """How many of the rows, counted from the last, are sampled."""
        return 1 + len(self.draft) if self.is_sampled else 0


class StepPlan(msgspec.Struct, frozen=True):
    """One step, in the order of its fields: forget `ended`, clear blocks, learn `started`, copy blocks, compute."""

    number: int
    ended: list[int]
    cleared: list[int]
    started: list[SequenceStart]
    copies: list[BlockCopy]
    steps: list[SequenceStep]

    @property
    def num_tokens(self) -> int:
        """Rows to compute."""
        return sum(step.num_rows for step in self.steps)


class Sample(msgspec.Struct, frozen=True):
    """The next token of a sequence; None if its logits were not finite, so that there is none, or for another `fault`.

    `is_drafted`: the plan's draft had it, so that its KV is computed already. `fault`: why its structure has no way on.
    """

    sequence_id: int
    token_id: int | None
    logprob: TokenLogprob | None = None
    is_drafted: bool = False
    fault: str | None = None

    def as_drafted(self) -> "Sample":
        """The same, known to have been drafted."""
        return Sample(self.sequence_id, self.token_id, self.logprob, is_drafted=True)


class StepResult(msgspec.Struct, frozen=True):
    """What an executor gives back for a plan: for each sampled sequence, in the plan's order, the drafted samples that
    turned out right, and one that was not drafted."""

    samples: list[Sample]
