"""A scheduler on a bench: no model, and steps that always succeed."""

from engine.kv.manager import KVManager
from engine.kv.pool import BlockPool
from engine.scheduler import Scheduler
from engine.sequence import Sequence, SequenceState
from tests.engine.tiny import tiny_chain, tiny_request


class Bench:
    """A scheduler whose steps always succeed; each sampled token is a 7."""

    def __init__(
        self, *, num_blocks: int = 100, max_running: int = 4, max_tokens: int = 32, caches: bool = True
    ) -> None:
        self.pool = BlockPool(num_blocks)
        kv = KVManager(self.pool, tiny_chain if caches else None)
        self.scheduler = Scheduler(kv, max_running=max_running, max_tokens_per_step=max_tokens)
        self.sequences: dict[str, Sequence] = {}
        self.now_s = 0.0

    def add(self, name: str, num_prompt: int = 4, **fields: object) -> Sequence:
        """A prompt that nobody else has."""
        prompt = [len(self.sequences) % 250] * num_prompt
        request = tiny_request(name, prompt, max_tokens=500, **fields)
        sequence = Sequence(len(self.sequences), request, 0, arrival_s=self.now_s)
        self.sequences[name] = sequence
        self.scheduler.add(sequence)
        return sequence

    def step(self) -> dict[str, int]:
        """Names and rows of one step."""
        plan = self.scheduler.schedule(self.now_s)
        by_id = {sequence.sequence_id: sequence for sequence in self.sequences.values()}
        rows = {}
        for step in plan.steps:
            sequence = by_id[step.sequence_id]
            rows[sequence.request.request_id] = len(step.token_ids)
            self.scheduler.commit(sequence, len(step.token_ids))
            if step.is_sampled:
                self.scheduler.append(sequence, 7)
        return rows

    def finish(self, name: str) -> None:
        self.scheduler.finish(self.sequences[name])

    @property
    def running(self) -> set[str]:
        return {name for name, s in self.sequences.items() if s.state is SequenceState.RUNNING}
