"""What the engine has done since it was loaded, counted as it happens."""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.plan import Sample, StepPlan
from engine.sequence import Sequence


@dataclass(slots=True)
class Tally:
    """Counts that only grow; see `EngineStats`."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_failed_steps: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_imported_blocks: int = 0
    num_refused_imports: int = 0

    def count_plan(self, plan: StepPlan, sequences: Iterable[Sequence]) -> None:
        """Count a computed plan; `sequences` are those of its steps, in their order."""
        started = {start.sequence_id for start in plan.started if start.is_first}
        for step, sequence in zip(plan.steps, sequences, strict=True):
            self.num_prompt_tokens += max(0, min(step.start + len(step.token_ids), sequence.num_prompt) - step.start)
            self.num_drafts += bool(step.draft)
            self.num_draft_tokens += len(step.draft)
            if step.sequence_id in started:
                self.num_cached_tokens += sequence.num_cached_tokens or 0

    def count_sample(self, sample: Sample) -> None:
        """Count a token that was given out."""
        self.num_generated_tokens += 1
        self.num_accepted_tokens += sample.is_drafted
