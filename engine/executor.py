"""Runs plans. The engine knows an executor by this contract only: one process now, several ranks later."""

import itertools
from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch

from engine.model_llama import LlamaModel
from engine.plan import Sample, SequenceStep, StepPlan, StepResult
from engine.proposer import verified
from engine.sampling import SamplerState, samples, sampling_rows
from engine.structured.masks import MaskedRows, StepMasks
from engine.structured.structures import Structures
from kernels import ops
from kernels.cpu.threads import set_num_threads
from kernels.paging import PagedCache, RowSpan
from schemas.structured import OutputStructure


class Executor(Protocol):
    """Computes what a plan says. Holds the memory of KV and each running sequence's sampling state, decides nothing.

    Called by one thread at a time. If `run` raises, the plan's rows, copies and clearings and the states of its
    sequences are undefined; all other rows and states are as before.
    """

    @property
    def num_blocks(self) -> int:
        """Blocks that plans may name."""
        ...

    @property
    def kv_layout(self) -> str:
        """Names the bytes of its blocks and the kind of device that computes them: equal names, exchangeable blocks."""
        ...

    def bind_thread(self) -> None:
        """Prepare the calling thread to be the one that runs plans."""
        ...

    def prepare(self, structure: OutputStructure) -> object:
        """Compile what an answer is to be held to, which may take longer than a step: to be called from another thread.
        It stays compiled while the result is held. InvalidValue or Unsupported if that cannot be done.
        """
        ...

    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step."""
        ...

    def read_block(self, block: int) -> bytes:
        """A block's content, between steps."""
        ...

    def write_block(self, block: int, content: bytes | memoryview) -> None:
        """Replace a whole block, between steps, by what `read_block` gave in an executor of the same `kv_layout`."""
        ...


class LocalExecutor:
    """Runs plans in the calling thread, on the device that the model's weights are on."""

    def __init__(
        self,
        model: LlamaModel,
        cache: PagedCache,
        structures: Structures,
        *,
        eos_token_ids: Sequence[int],
        num_threads: int,
    ) -> None:
        self._model = model
        self._cache = cache
        self._structures = structures
        self._eos_token_ids = eos_token_ids
        self._num_threads = num_threads
        self._states: dict[int, SamplerState] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks in the cache."""
        return self._cache.num_blocks

    @property
    def kv_layout(self) -> str:
        """See `Executor`."""
        return f"{self._cache.layout} {ops.numerics(self._cache.storage)}"

    def bind_thread(self) -> None:
        """Set the threads inside one operation, which torch keeps for each thread."""
        set_num_threads(self._num_threads)

    def prepare(self, structure: OutputStructure) -> object:
        """See `Executor`."""
        return self._structures.prepare(structure)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step; see `Executor`."""
        for sequence_id in plan.ended:
            self._states.pop(sequence_id, None)
        self._cache.zero_blocks(plan.cleared)
        for start in plan.started:
            matcher = self._structures.matcher(start.sampling.structure)
            self._states[start.sequence_id] = SamplerState(start, self._eos_token_ids, matcher)
        for copy in plan.copies:
            self._cache.copy_block(copy.source, copy.destination)
        steps = plan.steps
        logits = self._forward(steps)
        if any(step.draft for step in steps) and not logits.amax(-1).isfinite().all():
            # What is not finite shows through the masks of the rows before it: a guess must not end a sequence.
            steps = self._without_drafts(steps)
            logits = self._forward(steps)
        return self._sample(steps, logits)

    def read_block(self, block: int) -> bytes:
        """See `Executor`."""
        return self._cache.read_block(block)

    def write_block(self, block: int, content: bytes | memoryview) -> None:
        """See `Executor`."""
        self._cache.write_block(block, content)

    def _forward(self, steps: list[SequenceStep]) -> torch.Tensor:
        """Logits of the sampled rows."""
        spans = [RowSpan(step.start, step.num_rows, step.block_table) for step in steps]
        token_ids = [token_id for step in steps for token_id in step.row_token_ids]
        sampled: list[int] = []
        end = 0
        for step in steps:
            end += step.num_rows
            sampled += range(end - step.num_sampled, end)
        return self._model.forward(
            torch.tensor(token_ids), spans, torch.tensor(sampled, dtype=torch.int64), self._cache
        )

    def _without_drafts(self, steps: list[SequenceStep]) -> list[SequenceStep]:
        """Clear what was computed for drafts, and leave them out."""
        for step in steps:
            end = step.start + len(step.token_ids)
            for position in range(end, end + len(step.draft)):
                self._cache.zero_row(step.block_table, position)
        return [msgspec.structs.replace(step, draft=[]) for step in steps]

    def _sample(self, steps: list[SequenceStep], logits: torch.Tensor) -> StepResult:
        """Draw for all sampled rows as if their drafts were right, and give back what that turns out to be true for."""
        steps = [step for step in steps if step.is_sampled]
        if not steps:
            return StepResult([])
        rows = [row for step in steps for row in self._states[step.sequence_id].along(step.draft)]
        masks = self._masks(steps)
        drawn = iter(samples(rows, ops.sample(logits, sampling_rows(rows, masks)), masks))
        counted: list[Sample] = []
        for step in steps:
            counted += self._verify(step, list(itertools.islice(drawn, step.num_sampled)))
        return StepResult(counted)

    def _masks(self, steps: list[SequenceStep]) -> StepMasks:
        """What the sequences with a structure may have in each of their sampled rows."""
        masked, first = [], 0
        for step in steps:
            matcher = self._states[step.sequence_id].matcher
            if matcher is not None:
                masked.append(MaskedRows(first, matcher, step.draft))
            first += step.num_sampled
        return self._structures.masks(masked)

    def _verify(self, step: SequenceStep, drawn: list[Sample]) -> list[Sample]:
        counted = verified(step.draft, drawn)
        state = self._states[step.sequence_id]
        for sample in counted:
            if sample.token_id is not None:
                state.append(sample.token_id)
        return counted
