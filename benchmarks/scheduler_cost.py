"""What a step costs before and after the forward pass: the scheduler alone, with many running and more waiting."""

import itertools
import random
import time
from collections.abc import Iterator

from benchmarks.load import completion, text_of
from engine.kv.manager import KVManager
from engine.kv.pool import BlockPool
from engine.plan import StepPlan
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from models.kv_keys import BLOCK_SIZE, BlockKeyChain

NUM_RUNNING, NUM_WAITING = 256, 2_000
PROMPT_TOKENS, OUTPUT_TOKENS = (64, 256), (64, 512)
MAX_TOKENS_PER_STEP = 512
NUM_WARM_UP, NUM_STEPS = 800, 800
_MS_PER_S = 1000


class Rig:
    """A scheduler whose steps are computed in no time. What ends is replaced, so that its load stays the same."""

    def __init__(self) -> None:
        self._rng = random.Random(0)
        self._numbers = itertools.count()
        num_blocks = NUM_RUNNING * -(-(PROMPT_TOKENS[1] + OUTPUT_TOKENS[1]) // BLOCK_SIZE)
        self._scheduler = Scheduler(
            KVManager(BlockPool(num_blocks), _chain), max_running=NUM_RUNNING, max_tokens_per_step=MAX_TOKENS_PER_STEP
        )
        self._live: dict[int, Sequence] = {}
        for _ in range(NUM_RUNNING + NUM_WAITING):
            self._add()

    def run(self, num_steps: int) -> Iterator[float]:
        """Milliseconds of scheduling in each step."""
        for _ in range(num_steps):
            started_s = time.perf_counter()
            plan = self._scheduler.schedule(0.0)
            ended = self._commit(plan)
            yield (time.perf_counter() - started_s) * _MS_PER_S
            for sequence in ended:
                self._scheduler.finish(sequence)
                del self._live[sequence.sequence_id]
                self._add()

    @property
    def is_loaded(self) -> bool:
        """Whether as many run and wait as are to be measured."""
        scheduler = self._scheduler
        return scheduler.num_running >= 0.98 * NUM_RUNNING and scheduler.num_waiting >= NUM_WAITING

    def _add(self) -> None:
        number = next(self._numbers)
        num_prompt, num_output = self._rng.randint(*PROMPT_TOKENS), self._rng.randint(*OUTPUT_TOKENS)
        request = completion(str(number), text_of(self._rng, num_prompt), max_tokens=num_output)
        self._live[number] = Sequence(number, request, 0, arrival_s=float(number))
        self._scheduler.add(self._live[number])

    def _commit(self, plan: StepPlan) -> list[Sequence]:
        """What the engine does with a step's result; returns those that have their last token."""
        ended = []
        for step in plan.steps:
            sequence = self._live[step.sequence_id]
            self._scheduler.commit(sequence, len(step.token_ids))
            if step.is_sampled:
                self._scheduler.append(sequence, 11)
                if sequence.num_output == sequence.request.sampling.max_tokens:
                    ended.append(sequence)
        return ended


def step_costs_ms() -> list[float]:
    """Milliseconds of scheduling a step, once the batch is full of sequences of all ages."""
    rig = Rig()
    for _ in rig.run(NUM_WARM_UP):
        pass
    if not rig.is_loaded:
        raise RuntimeError("the batch is not full: the figures would be of another load")
    return list(rig.run(NUM_STEPS))


def _chain(tenant: str) -> BlockKeyChain:
    return BlockKeyChain(model_hash="none", kv_dtype="none", layout="none", salt=tenant)
