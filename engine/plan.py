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
    """Rows of one sequence: `token_ids` at positions `start` and on, with KV in `block_table`.

    `is_sampled`: the last row's logits give the sequence's next token.
    """

    sequence_id: int
    start: int
    token_ids: list[int]
    block_table: list[int]
    is_sampled: bool


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
        return sum(len(step.token_ids) for step in self.steps)


class Sample(msgspec.Struct, frozen=True):
    """The next token of a sequence; None if its logits were not finite, so that there is none."""

    sequence_id: int
    token_id: int | None
    logprob: TokenLogprob | None = None


class StepResult(msgspec.Struct, frozen=True):
    """What an executor gives back for a plan: one sample for each sampled sequence, in the plan's order."""

    samples: list[Sample]
