"""An executor that computes nothing and checks everything: each KV place remembers the whole context it was made from.

Its "model" is a hash of the context that it finds in the blocks, so a wrong, stale or foreign block changes the tokens.
"""

import hashlib
import struct

from engine.config import EngineConfig
from engine.engine import Engine
from engine.plan import Sample, SequenceStart, StepPlan, StepResult
from engine.types import GenerationRequest
from models.kv_keys import BLOCK_SIZE
from tests.engine.tiny import EOS, SPEC, TOKENIZER, Clock, tiny_chain

Context = bytes
ROOT: Context = b""


def extend(context: Context, token_id: int) -> Context:
    """The context one token later."""
    return hashlib.blake2b(context + struct.pack("<I", token_id), digest_size=12).digest()


def next_token(context: Context, request_seed: int, choice: int, index: int) -> int:
    """What the "model" says after this context: any byte, and now and then the end."""
    digest = hashlib.blake2b(context + struct.pack("<QII", request_seed, choice, index), digest_size=4).digest()
    return int.from_bytes(digest) % (EOS + 1)


def expected_tokens(request: GenerationRequest, choice: int = 0) -> list[int]:
    """The output of a choice, computed by itself from its first token on."""
    context = ROOT
    for token_id in request.prompt_token_ids:
        context = extend(context, token_id)
    token_ids: list[int] = []
    while len(token_ids) < request.sampling.max_tokens and EOS not in token_ids:
        token_ids.append(next_token(context, request.sampling.seed, choice, len(token_ids)))
        context = extend(context, token_ids[-1])
    return token_ids


class WrongKV(Exception):
    """A sequence would have read what is not its context, or written where others read."""


class SimulatedExecutor:
    """Runs plans over remembered contexts. `fail_next` makes the next step raise half way; `taint` names sequences
    whose numbers are not finite."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.fail_next = False
        self.taint_next = False
        self.plans: list[StepPlan] = []
        self._places: list[list[Context | None]] = [[None] * BLOCK_SIZE for _ in range(num_blocks)]
        self._starts: dict[int, SequenceStart] = {}
        self._outputs: dict[int, int] = {}

    def bind_thread(self) -> None:
        """Nothing is set by thread."""

    def run(self, plan: StepPlan) -> StepResult:
        """Check and "compute" one step."""
        self.plans.append(plan)
        for sequence_id in plan.ended:
            self._starts.pop(sequence_id, None)
        for start in plan.started:
            self._starts[start.sequence_id] = start
            self._outputs[start.sequence_id] = len(start.token_ids) - start.num_prompt
        for block in plan.cleared:
            self._places[block] = [None] * BLOCK_SIZE
        for copy in plan.copies:
            self._places[copy.destination] = list(self._places[copy.source])
        self._check_writers(plan)
        before = [self._read(step.block_table, step.start - 1) for step in plan.steps]
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("the step was told to fail")
        samples = []
        for step, read in zip(plan.steps, before, strict=True):
            context = read
            for offset, token_id in enumerate(step.token_ids):
                context = extend(context, token_id)
                place = step.start + offset
                self._places[step.block_table[place // BLOCK_SIZE]][place % BLOCK_SIZE] = context
            if step.is_sampled:
                samples.append(self._sample(step.sequence_id, context))
        self.taint_next = False
        return StepResult(samples)

    def _sample(self, sequence_id: int, context: Context) -> Sample:
        start, index = self._starts[sequence_id], self._outputs[sequence_id]
        self._outputs[sequence_id] += 1
        token_id = next_token(context, start.sampling.seed, start.choice, index)
        return Sample(sequence_id, None if self.taint_next else token_id)

    def _read(self, table: list[int], position: int) -> Context:
        """The context up to a position; every place before it must hold one as well."""
        if position < 0:
            return ROOT
        for place in range(position + 1):
            if self._places[table[place // BLOCK_SIZE]][place % BLOCK_SIZE] is None:
                raise WrongKV(f"position {place} was never computed")
        context = self._places[table[position // BLOCK_SIZE]][position % BLOCK_SIZE]
        return context or ROOT

    def _check_writers(self, plan: StepPlan) -> None:
        holders: dict[int, list[int]] = {}
        for step in plan.steps:
            if len(set(step.block_table)) != len(step.block_table):
                raise WrongKV("a block stands twice in one table")
            for block in step.block_table:
                holders.setdefault(block, []).append(step.sequence_id)
        for step in plan.steps:
            first, last = step.start // BLOCK_SIZE, (step.start + len(step.token_ids) - 1) // BLOCK_SIZE
            for block in step.block_table[first : last + 1]:
                if holders[block] != [step.sequence_id]:
                    raise WrongKV(f"block {block} is written while {holders[block]} hold it")


def simulated_engine(
    num_blocks: int,
    *,
    max_running: int = 8,
    max_tokens_per_step: int = 32,
    prefix_cache: bool = True,
    clock: Clock | None = None,
) -> tuple[Engine, SimulatedExecutor]:
    """An engine that runs at the speed of its scheduler."""
    executor = SimulatedExecutor(num_blocks)
    config = EngineConfig(max_running=max_running, max_tokens_per_step=max_tokens_per_step, prefix_cache=prefix_cache)
    chain = tiny_chain if prefix_cache else None
    return Engine(SPEC, TOKENIZER, executor, config, make_chain=chain, clock=clock or Clock()), executor
