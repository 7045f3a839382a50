"""A plan in the making: what each sequence is to compute, until it is preempted after all."""

from dataclasses import dataclass, field

from engine.chunks import row_weight
from engine.plan import BlockCopy, SequenceStart, SequenceStep
from engine.sequence import Sequence


@dataclass(slots=True)
class Outline:
    """Rows of each sequence in the order in which they are computed, and what they took from the budget.

    `budget` is the number of rows still to give, those deep in a context counted more than once.
    """

    budget: int
    rows: dict[Sequence, int] = field(default_factory=dict)
    costs: dict[Sequence, int] = field(default_factory=dict)
    drafts: dict[Sequence, list[int]] = field(default_factory=dict)
    copies: dict[Sequence, BlockCopy] = field(default_factory=dict)
    started: list[Sequence] = field(default_factory=list)

    def add(self, sequence: Sequence, num_rows: int, copy: BlockCopy | None) -> None:
        """Compute the sequence's next rows."""
        self.rows[sequence] = num_rows
        # A sequence that decodes has its row in every step, wherever it is.
        self.costs[sequence] = cost = 1 if num_rows == 1 else num_rows * row_weight(sequence.num_computed)
        self.budget -= cost
        if copy is not None:
            self.copies[sequence] = copy

    def add_draft(self, sequence: Sequence, draft: list[int]) -> None:
        """Compute a draft behind the rows of a sequence that is sampled."""
        self.drafts[sequence] = draft
        self.budget -= len(draft) * row_weight(sequence.num_tokens)

    def drop(self, sequence: Sequence) -> None:
        """Compute nothing for the sequence."""
        self.rows.pop(sequence, None)
        self.budget += self.costs.pop(sequence, 0)
        self.copies.pop(sequence, None)

    def is_sampled(self, sequence: Sequence) -> bool:
        """Whether the rows of the sequence reach its last token."""
        return self.rows[sequence] == sequence.num_pending

    @property
    def starts(self) -> list[SequenceStart]:
        """What executors must learn."""
        return [_start(sequence) for sequence in self.started if sequence in self.rows]

    @property
    def steps(self) -> list[SequenceStep]:
        """What they compute."""
        return [_step(sequence, num_rows, self.drafts.get(sequence, [])) for sequence, num_rows in self.rows.items()]


def _start(sequence: Sequence) -> SequenceStart:
    return SequenceStart(
        sequence_id=sequence.sequence_id,
        choice=sequence.choice,
        num_prompt=sequence.num_prompt,
        token_ids=list(sequence.token_ids),
        sampling=sequence.request.sampling,
        is_first=sequence.num_preemptions == 0,
    )


def _step(sequence: Sequence, num_rows: int, draft: list[int]) -> SequenceStep:
    start, token_ids = sequence.num_computed, sequence.token_ids
    end = start + num_rows
    # By position: this is made for each sequence in each step, and names cost as much as all the rest.
    return SequenceStep(
        sequence.sequence_id, start, token_ids[start:end], sequence.blocks.copy(), end == len(token_ids), draft
    )
