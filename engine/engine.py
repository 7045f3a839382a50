"""The step loop: requests in, tokens out, many at a time. Knows nothing of where requests come from.

Numbers are "verified": a request's tokens and logprobs depend on its tokens, its parameters and its seed, and not on
what else runs, how its prompt was chunked, or where its KV came from.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import asdict

from engine.config import EngineConfig
from engine.deadlines import Deadlines
from engine.executor import Executor
from engine.faults import FailureLimit, no_way_on, not_finite, output_fault, step_fault
from engine.generation import Choice, Generation
from engine.kv.manager import KVManager, MakeChain
from engine.kv.pool import BlockPool
from engine.kv.transfer import KVTransfer
from engine.loading import chain_maker, load_executor
from engine.plan import Sample, StepPlan, StepResult
from engine.proposer import Proposer, make_proposer
from engine.roster import Roster
from engine.scheduler import Scheduler
from engine.stream import Accepted
from engine.tally import Tally
from engine.types import DEADLINE, EngineStats, GenerationOutput, GenerationRequest
from engine.validation import check_request
from models.catalog import LoadedModel
from models.spec import ModelSpec
from models.tokenizer import Tokenizer
from schemas.errors import EngineFault, HeadraceError, InvalidValue

log = logging.getLogger(__name__)


class Engine:
    """Runs one model. Not thread-safe: one thread calls everything (see `EngineThread`)."""

    def __init__(
        self,
        spec: ModelSpec,
        tokenizer: Tokenizer,
        executor: Executor,
        config: EngineConfig,
        *,
        make_chain: MakeChain | None = None,
        proposer: Proposer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._executor = executor
        self._clock = clock
        self._pool = BlockPool(executor.num_blocks)
        kv = KVManager(self._pool, make_chain)
        self._scheduler = Scheduler(
            kv,
            max_running=config.max_running,
            max_tokens_per_step=config.max_tokens_per_step,
            proposer=proposer or make_proposer(config),
        )
        self._roster = Roster(tokenizer, spec.eos_token_ids)
        self._deadlines = Deadlines()
        self._early: list[GenerationOutput] = []
        self._tally = Tally()
        self.kv = KVTransfer(kv, executor, self._tally)
        self._failures = FailureLimit()

    @classmethod
    def load(cls, model: LoadedModel, config: EngineConfig) -> "Engine":
        """Read a model's weights and set up its KV memory: some 2 s for the default model.

        ModelFileError if the weights are not complete, SettingsError if `kv_bytes` holds no block.
        """
        executor = load_executor(model, config)
        return cls(model.spec, model.tokenizer, executor, config, make_chain=chain_maker(model, config))

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return bool(self._roster or self._early)

    @property
    def executor(self) -> Executor:
        """What runs the plans."""
        return self._executor

    def kv_keys(self, request_id: str, choice: int = 0) -> list[bytes]:
        """The handle of a running choice's KV, for `kv.export`: keys of the blocks that are computed by now."""
        generation = self._roster.generation(request_id)
        found = None if generation is None else generation.choices.get(choice)
        return [] if found is None else found.sequence.computed_keys

    def add(self, request: GenerationRequest) -> None:
        """Take a request; its first output comes from a later `step`.

        InvalidValue, Unsupported or ContextTooLong if it can never run, or if its id is running already. Compiles its
        structure, if it has one, unless the result of `prepare` is held.
        """
        check_request(
            request,
            context_length=self._spec.context_length,
            vocab_size=self._tokenizer.vocab_size,
            num_blocks=self._executor.num_blocks,
        )
        if self._roster.generation(request.request_id) is not None:
            raise InvalidValue(f"A request with the id {request.request_id!r} is running.", param="request_id")
        entry = self._roster.enter(request, prepared=self.prepare(request), arrival_s=self._clock())
        self._early += entry.ended
        for choice in entry.generation.choices.values():
            self._scheduler.add(choice.sequence)
        if request.deadline_s is not None:
            self._deadlines.push(request.deadline_s, entry.generation)

    def prepare(self, request: GenerationRequest) -> object:
        """Compile the structure that the request's answer is held to. May be called from any thread, ahead of `add`.

        InvalidValue or Unsupported if it cannot be enforced.
        """
        structure = request.sampling.structure
        return None if structure is None else self._executor.prepare(structure)

    def cancel(self, request_id: str) -> list[GenerationOutput]:
        """End a request now; returns the last outputs of its choices, none if it is not running.

        Its KV is free and its id may be used again when this returns.
        """
        generation = self._roster.generation(request_id)
        return [] if generation is None else self._cancel(generation)

    def step(self) -> list[GenerationOutput]:
        """Compute one step, and return what it gave, one token an output: a choice has several if a draft was right."""
        now_s = self._clock()
        outputs = self._admit(now_s)
        plan = self._scheduler.schedule(now_s)
        result = self._forward(plan)
        if isinstance(result, EngineFault):
            return outputs + self._fail(plan, result)
        return outputs + self._emit(plan, result)

    def stats(self) -> EngineStats:
        """What the engine holds and has done."""
        blocks = self._pool.counts
        return EngineStats(
            num_running=self._scheduler.num_running,
            num_waiting=self._scheduler.num_waiting,
            kv_blocks_total=blocks.total,
            kv_blocks_free=blocks.free,
            kv_blocks_cached=blocks.cached,
            kv_blocks_used=blocks.used,
            num_steps=self._scheduler.num_steps,
            num_preemptions=self._scheduler.num_preemptions,
            **asdict(self._tally),
        )

    def _admit(self, now_s: float) -> list[GenerationOutput]:
        """End what is too late, before anything is computed for it; and give out what ended before it began."""
        outputs, self._early = self._early, []
        for generation in self._deadlines.pop_passed(now_s):
            outputs += self._cancel(generation, stop_reason=DEADLINE)
        return outputs

    def _forward(self, plan: StepPlan) -> StepResult | EngineFault:
        """Run the plan. An exception must not end the loop, so it becomes a value."""
        if not plan.steps:
            if self._scheduler.has_work:
                raise EngineFault("Sequences are alive and none can run: this is a fault of the scheduler.")
            return StepResult([])
        try:
            return self._executor.run(plan)
        except Exception as error:
            log.exception("A step of %d sequences failed.", len(plan.steps))
            return step_fault(error)

    def _emit(self, plan: StepPlan, result: StepResult) -> list[GenerationOutput]:
        """Record what was computed, and give each sampled token to its choice."""
        self._failures.note_worked()
        sequences = [choice.sequence for choice in self._roster.planned(plan)]
        self._tally.count_plan(plan, sequences)
        for step, sequence in zip(plan.steps, sequences, strict=True):
            self._scheduler.commit(sequence, len(step.token_ids))
        # A choice may end in the middle of a draft: what was drawn after that is not taken.
        taken = ((sample, self._roster.choice(sample.sequence_id)) for sample in result.samples)
        return [self._take(choice, sample) for sample, choice in taken if choice is not None]

    def _take(self, choice: Choice, sample: Sample) -> GenerationOutput:
        if sample.token_id is None:
            fault = not_finite() if sample.fault is None else no_way_on(sample.fault)
            return self._end(choice, fault, is_tainted=sample.fault is None)
        self._tally.count_sample(sample)
        accepted = self._accept(choice, sample.token_id)
        self._scheduler.append(choice.sequence, sample.token_id, is_drafted=sample.is_drafted)
        output = choice.token_output(sample.token_id, accepted, sample.logprob)
        if accepted.finish_reason is not None:
            self._close(choice)
        return output

    def _accept(self, choice: Choice, token_id: int) -> Accepted:
        """What the token becomes. What cannot be shown ends its choice and no other."""
        try:
            return choice.stream.accept(token_id)
        except Exception as error:
            log.exception("A token could not be made text.")
            return Accepted("", "error", error=output_fault(error).body)

    def _fail(self, plan: StepPlan, fault: EngineFault) -> list[GenerationOutput]:
        """Try the sequences of a step that raised again, and end those for which it must have been."""
        self._tally.num_failed_steps += 1
        choices = {choice.sequence: choice for choice in self._roster.planned(plan)}
        outputs = []
        for sequence in self._scheduler.take_back(plan, list(choices)):
            self._failures.note_ended(fault)
            outputs.append(self._end(choices[sequence], fault))
        return outputs

    def _end(self, choice: Choice, fault: HeadraceError, *, is_tainted: bool = False) -> GenerationOutput:
        output = choice.end_output("error", text=choice.stream.flush(), error=fault.body)
        self._close(choice, is_tainted=is_tainted)
        return output

    def _cancel(self, generation: Generation, *, stop_reason: str | None = None) -> list[GenerationOutput]:
        """End all choices of a request that are still running."""
        outputs = []
        for choice in list(generation.choices.values()):
            outputs.append(choice.end_output("cancelled", text=choice.stream.flush(), stop_reason=stop_reason))
            self._close(choice)
        return outputs

    def _close(self, choice: Choice, *, is_tainted: bool = False) -> None:
        self._scheduler.finish(choice.sequence, is_tainted=is_tainted)
        self._roster.leave(choice)
