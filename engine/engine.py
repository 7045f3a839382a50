"""The step loop: requests in, tokens out, many at a time. Knows nothing of where requests come from.

Numbers are "verified": a request's tokens and logprobs depend on its tokens, its parameters and its seed, and not on
what else runs, how its prompt was chunked, or where its KV came from.
"""

import logging
import time
from collections.abc import Callable
from itertools import count

from engine.config import EngineConfig
from engine.deadlines import Deadlines
from engine.executor import Executor
from engine.generation import Choice, Generation, replay
from engine.kv.manager import KVManager, MakeChain
from engine.kv.pool import BlockPool
from engine.loading import load_executor
from engine.plan import Sample, StepPlan, StepResult
from engine.scheduler import Scheduler
from engine.sequence import Sequence
from engine.types import DEADLINE, EngineStats, GenerationOutput, GenerationRequest
from engine.validation import check_request
from kernels.paging import LAYOUT
from models.catalog import LoadedModel
from models.kv_keys import BlockKeyChain
from models.spec import ModelSpec
from models.tokenizer import Tokenizer
from schemas.errors import EngineFault, InvalidValue

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._executor = executor
        self._clock = clock
        self._pool = BlockPool(executor.num_blocks)
        self._scheduler = Scheduler(
            KVManager(self._pool, make_chain),
            max_running=config.max_running,
            max_tokens_per_step=config.max_tokens_per_step,
        )
        self._generations: dict[str, Generation] = {}
        self._choices: dict[int, Choice] = {}  # by sequence id
        self._sequence_ids = count()
        self._deadlines = Deadlines()
        self._early: list[GenerationOutput] = []
        self._num_prompt_tokens = self._num_cached_tokens = self._num_generated_tokens = self._num_failed_steps = 0

    @classmethod
    def load(cls, model: LoadedModel, config: EngineConfig) -> "Engine":
        """Read a model's weights and set up its KV memory: some 2 s for the default model.

        ModelFileError if the weights are not complete, SettingsError if `kv_bytes` holds no block.
        """
        hashes, dtype = model.hashes, str(config.torch_dtype).removeprefix("torch.")

        def make_chain(tenant: str) -> BlockKeyChain:
            return BlockKeyChain(model_hash=hashes.model, kv_dtype=dtype, layout=LAYOUT, salt=tenant)

        executor = load_executor(model, config)
        chain = make_chain if config.prefix_cache else None
        return cls(model.spec, model.tokenizer, executor, config, make_chain=chain)

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return bool(self._generations or self._early)

    @property
    def executor(self) -> Executor:
        """What runs the plans."""
        return self._executor

    def add(self, request: GenerationRequest) -> None:
        """Take a request; its first output comes from a later `step`.

        InvalidValue or ContextTooLong if it can never run, or if its id is running already.
        """
        check_request(
            request,
            context_length=self._spec.context_length,
            vocab_size=self._tokenizer.vocab_size,
            num_blocks=self._executor.num_blocks,
        )
        if request.request_id in self._generations:
            raise InvalidValue(f"A request with the id {request.request_id!r} is running.", param="request_id")
        generation = Generation(request, {})
        self._generations[request.request_id] = generation
        leader: Sequence | None = None
        for number in range(request.sampling.num_choices):
            sequence = self._add_choice(generation, number, leader)
            leader = leader or sequence
        if request.deadline_s is not None:
            self._deadlines.push(request.deadline_s, generation)
        self._forget_if_ended(generation)

    def cancel(self, request_id: str) -> list[GenerationOutput]:
        """End a request now; returns the last outputs of its choices, none if it is not running.

        Its KV is free and its id may be used again when this returns.
        """
        generation = self._generations.get(request_id)
        return [] if generation is None else self._cancel(generation)

    def step(self) -> list[GenerationOutput]:
        """Compute one step, and return what it gave: at most one token for each choice."""
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
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=self._num_cached_tokens,
            num_generated_tokens=self._num_generated_tokens,
            num_preemptions=self._scheduler.num_preemptions,
            num_failed_steps=self._num_failed_steps,
        )

    def _add_choice(self, generation: Generation, number: int, leader: Sequence | None) -> Sequence | None:
        """Let a choice wait for its turn; returns its sequence, unless a predecessor's tokens had ended it already."""
        request = generation.request
        sequence = Sequence(next(self._sequence_ids), request, number, arrival_s=self._clock(), leader=leader)
        replayed = replay(request, number, self._tokenizer, self._spec.eos_token_ids)
        choice = Choice(sequence, replayed.stream)
        if replayed.ended is not None:
            self._early.append(choice.end_output(replayed.ended, stop_reason=replayed.stop_reason))
            return None
        generation.choices[number] = choice
        self._choices[sequence.sequence_id] = choice
        self._scheduler.add(sequence)
        return sequence

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
            fault = EngineFault(
                f"The step that computed this request failed ({type(error).__name__}: {error}). Send it again; if it "
                "fails again, the worker's log has the details."
            )
            fault.__cause__ = error
            return fault

    def _emit(self, plan: StepPlan, result: StepResult) -> list[GenerationOutput]:
        """Record what was computed, and give each sampled token to its choice."""
        for step in plan.steps:
            sequence = self._choices[step.sequence_id].sequence
            self._num_prompt_tokens += max(0, min(step.start + len(step.token_ids), sequence.num_prompt) - step.start)
            self._scheduler.commit(sequence, len(step.token_ids))
        self._num_cached_tokens += sum(
            self._choices[start.sequence_id].sequence.num_cached_tokens or 0 for start in plan.started if start.is_first
        )
        return [self._take(sample) for sample in result.samples]

    def _take(self, sample: Sample) -> GenerationOutput:
        choice = self._choices[sample.sequence_id]
        if sample.token_id is None:
            fault = EngineFault("The model gave numbers that are not finite: its weights or this machine are damaged.")
            output = choice.end_output("error", text=choice.stream.flush(), error=fault.body)
            self._close(choice, is_tainted=True)
            return output
        self._num_generated_tokens += 1
        accepted = choice.stream.accept(sample.token_id)
        self._scheduler.append(choice.sequence, sample.token_id)
        output = choice.token_output(sample.token_id, accepted, sample.logprob)
        if accepted.finish_reason is not None:
            self._close(choice)
        return output

    def _fail(self, plan: StepPlan, fault: EngineFault) -> list[GenerationOutput]:
        """End every choice of a step that raised; the others never notice."""
        self._num_failed_steps += 1
        outputs = []
        for step in plan.steps:
            choice = self._choices[step.sequence_id]
            outputs.append(choice.end_output("error", text=choice.stream.flush(), error=fault.body))
            self._close(choice)
        return outputs

    def _cancel(self, generation: Generation, *, stop_reason: str | None = None) -> list[GenerationOutput]:
        """End all choices of a request that are still running."""
        outputs = []
        for choice in list(generation.choices.values()):
            outputs.append(choice.end_output("cancelled", text=choice.stream.flush(), stop_reason=stop_reason))
            self._close(choice)
        return outputs

    def _close(self, choice: Choice, *, is_tainted: bool = False) -> None:
        self._scheduler.finish(choice.sequence, is_tainted=is_tainted)
        del self._choices[choice.sequence.sequence_id]
        generation = self._generations[choice.request.request_id]
        del generation.choices[choice.sequence.choice]
        self._forget_if_ended(generation)

    def _forget_if_ended(self, generation: Generation) -> None:
        if not generation.choices:
            del self._generations[generation.request.request_id]
