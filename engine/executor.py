"""Runs plans. The engine knows an executor by this contract only: one process now, several ranks later."""

from collections.abc import Sequence
from typing import Protocol

import torch

from engine.model_llama import LlamaModel
from engine.plan import StepPlan, StepResult
from engine.sampling import SamplerState, samples, sampling_rows
from kernels import ops
from kernels.cpu.threads import set_num_threads
from kernels.paging import PagedCache, RowSpan


class Executor(Protocol):
    """Computes what a plan says. Holds the memory of KV and each running sequence's sampling state, decides nothing.

    Called by one thread at a time. If `run` raises, the KV and the states of the plan's sequences are undefined, and
    those of all others as before.
    """

    @property
    def num_blocks(self) -> int:
        """Blocks that plans may name."""
        ...

    def bind_thread(self) -> None:
        """Prepare the calling thread to be the one that runs plans."""
        ...

    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step."""
        ...


class LocalExecutor:
    """Runs plans in the calling thread, on the device that the model's weights are on."""

    def __init__(self, model: LlamaModel, cache: PagedCache, *, eos_token_ids: Sequence[int], num_threads: int) -> None:
        self._model = model
        self._cache = cache
        self._eos_token_ids = eos_token_ids
        self._num_threads = num_threads
        self._states: dict[int, SamplerState] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks in the cache."""
        return self._cache.num_blocks

    def bind_thread(self) -> None:
        """Set the threads inside one operation, which torch keeps for each thread."""
        set_num_threads(self._num_threads)

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step; see `Executor`."""
        for sequence_id in plan.ended:
            self._states.pop(sequence_id, None)
        self._cache.zero_blocks(plan.cleared)
        for start in plan.started:
            self._states[start.sequence_id] = SamplerState(start, self._eos_token_ids)
        for copy in plan.copies:
            self._cache.copy_block(copy.source, copy.destination)
        return self._sample(plan, self._forward(plan))

    def _forward(self, plan: StepPlan) -> torch.Tensor:
        """Logits of the sampled rows."""
        spans = [RowSpan(step.start, len(step.token_ids), step.block_table) for step in plan.steps]
        token_ids = [token_id for step in plan.steps for token_id in step.token_ids]
        sampled, end = [], 0
        for step in plan.steps:
            end += len(step.token_ids)
            if step.is_sampled:
                sampled.append(end - 1)
        return self._model.forward(
            torch.tensor(token_ids), spans, torch.tensor(sampled, dtype=torch.int64), self._cache
        )

    def _sample(self, plan: StepPlan, logits: torch.Tensor) -> StepResult:
        states = [self._states[step.sequence_id] for step in plan.steps if step.is_sampled]
        if not states:
            return StepResult([])
        drawn = samples(states, ops.sample(logits, sampling_rows(states)))
        for state, sample in zip(states, drawn, strict=True):
            if sample.token_id is not None:
                state.append(sample.token_id)
        return StepResult(drawn)
