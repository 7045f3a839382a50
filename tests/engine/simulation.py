"""An executor that computes nothing and checks everything: each KV place remembers the whole context it was made from.

Its "model" is a hash of the context that it finds in the blocks, so a wrong, stale or foreign block changes the tokens.
"""

import hashlib
import struct

from engine.config import EngineConfig
from engine.engine import Engine
from engine.plan import Sample, SequenceStart, SequenceStep, StepPlan, StepResult
from engine.proposer import Proposer, verified
from engine.types import GenerationRequest
from models.kv_keys import BLOCK_SIZE
from schemas.errors import Unsupported
from schemas.structured import OutputStructure
from tests.engine.tiny import EOS, SPEC, TOKENIZER, Clock, tiny_chain

Context = bytes
ROOT: Context = b""
NEVER = bytes(12)


def extend(context: Context, token_id: int) -> Context:
    """The context one token later."""
    return hashlib.blake2b(context + struct.pack("<I", token_id), digest_size=12).digest()


def hashed(text: str) -> float:
    """A number from 0 to 1 that the text decides."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) / 2**32


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

    kv_layout = "simulated"

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

    def prepare(self, structure: OutputStructure) -> object:
        """Its tokens follow from the context alone."""
        raise Unsupported(f"the simulated model holds no answer to a {structure.kind}", param="structure")

    def read_block(self, block: int) -> bytes:
        """A block's contexts; what was never computed is all zeros."""
        return b"".join(context or NEVER for context in self._places[block])

    def write_block(self, block: int, content: bytes | memoryview) -> None:
        """The contexts that another one remembered."""
        size = len(NEVER)
        parts = [bytes(content[i * size : (i + 1) * size]) for i in range(BLOCK_SIZE)]
        self._places[block] = [None if part == NEVER else part for part in parts]

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
            contexts = [read]
            for place, token_id in enumerate(step.row_token_ids, start=step.start):
                contexts.append(extend(contexts[-1], token_id))
                self._places[step.block_table[place // BLOCK_SIZE]][place % BLOCK_SIZE] = contexts[-1]
            if step.is_sampled:
                samples += self._sample(step, contexts[-step.num_sampled :])
        self.taint_next = False
        return StepResult(samples)

    def _sample(self, step: SequenceStep, contexts: list[Context]) -> list[Sample]:
        start, first = self._starts[step.sequence_id], self._outputs[step.sequence_id]
        token_ids = [next_token(c, start.sampling.seed, start.choice, first + i) for i, c in enumerate(contexts)]
        drawn = [Sample(step.sequence_id, None if self.taint_next else token_id) for token_id in token_ids]
        counted = verified(step.draft, drawn)
        self._outputs[step.sequence_id] += len(counted)
        return counted

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
            first, last = step.start // BLOCK_SIZE, (step.start + step.num_rows - 1) // BLOCK_SIZE
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
    proposer: Proposer | None = None,
) -> tuple[Engine, SimulatedExecutor]:
    """An engine that runs at the speed of its scheduler."""
    executor = SimulatedExecutor(num_blocks)
    config = EngineConfig(max_running=max_running, max_tokens_per_step=max_tokens_per_step, prefix_cache=prefix_cache)
    chain = tiny_chain if prefix_cache else None
    engine = Engine(SPEC, TOKENIZER, executor, config, make_chain=chain, clock=clock or Clock(), proposer=proposer)
    return engine, executor
