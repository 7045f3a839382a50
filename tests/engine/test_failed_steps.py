"""A step that raises: those that can go on go on with the tokens they would have had, and only the guilty end."""

import queue

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.engine import Engine
from engine.faults import MAX_ENDED_IN_A_ROW
from engine.generation import Replay, replay
from engine.plan import StepPlan, StepResult
from engine.suspects import MAX_FAILURES
from engine.thread import EngineThread
from engine.types import GenerationOutput, GenerationRequest
from models.tokenizer import Tokenizer
from schemas.errors import EngineFault
from tests.engine.simulation import SimulatedExecutor, expected_tokens, simulated_engine
from tests.engine.tiny import check_blocks, last, run, tiny_request, tokens

POISON = 255
WAIT_S = 20.0


class Poisoned:
    """Raises half way in each step in which a sequence takes part whose prompt holds the poison.

    `crowd` raises for every step of more sequences than that, whoever they are.
    """

    def __init__(self, executor: SimulatedExecutor, *, crowd: int | None = None) -> None:
        self._executor = executor
        self._run = executor.run
        self._crowd = crowd
        self._poisoned: set[int] = set()
        executor.run = self  # type: ignore[method-assign]  # a test's wrapper

    def __call__(self, plan: StepPlan) -> StepResult:
        starts = [start for start in plan.started if POISON in start.token_ids[: start.num_prompt]]
        self._poisoned |= {start.sequence_id for start in starts}
        is_crowd = self._crowd is not None and len(plan.steps) > self._crowd
        self._executor.fail_next = is_crowd or any(step.sequence_id in self._poisoned for step in plan.steps)
        return self._run(plan)


def requests(num: int) -> list[GenerationRequest]:
    return [tiny_request(f"r{i}", [i + 1] * 20, max_tokens=30, seed=i) for i in range(num)]


def poison(request_id: str = "poison", priority_class: str = "interactive") -> GenerationRequest:
    return tiny_request(request_id, [POISON] * 20, priority_class=priority_class)


def check_all_as_expected(outputs: list[GenerationOutput], served: list[GenerationRequest]) -> None:
    for request in served:
        for choice in range(request.sampling.num_choices):
            assert tokens(outputs, request.request_id, choice) == expected_tokens(request, choice)
            assert last(outputs, request.request_id, choice).error is None


def test_a_step_that_raises_once_ends_nobody() -> None:
    engine, executor = simulated_engine(64, max_running=3)
    served = requests(5)
    for request in served:
        engine.add(request)
    outputs = engine.step() + engine.step()
    executor.fail_next = True
    outputs += run(engine)
    check_all_as_expected(outputs, served)
    assert engine.stats().num_failed_steps == 1


def test_the_sequences_of_a_failed_step_are_tried_alone_and_all_others_wait() -> None:
    engine, executor = simulated_engine(64, max_running=3)
    for request in requests(3):
        engine.add(request)
    engine.step()
    executor.fail_next = True
    engine.step()
    engine.add(tiny_request("late", "abc"))
    for _ in range(3):
        engine.step()
        assert len(executor.plans[-1].steps) == 1
    engine.step()
    assert len(executor.plans[-1].steps) == 3


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("num_blocks", [8, 64])
def test_only_the_request_for_which_steps_raise_ends_and_says_why(num_blocks: int, *, prefix_cache: bool) -> None:
    engine, executor = simulated_engine(num_blocks, max_running=4, prefix_cache=prefix_cache)
    Poisoned(executor)
    served = [*requests(5), tiny_request("many", "xyz" * 9, max_tokens=20, num_choices=3)]
    outputs = run(engine, [*served[:2], poison(), *served[2:]])
    check_all_as_expected(outputs, served)
    end = last(outputs, "poison")
    assert end.finish_reason == "error"
    assert end.error is not None
    assert end.error.code == "engine_fault"
    assert "the step was told to fail" in end.error.message


def test_a_request_that_runs_alone_is_tried_once_more() -> None:
    engine, executor = simulated_engine(64)
    executor.fail_next = True
    request = tiny_request("r", "abc", max_tokens=20)
    check_all_as_expected(run(engine, [request]), [request])
    Poisoned(executor)
    assert last(run(engine, [poison()]), "poison").finish_reason == "error"
    assert engine.stats().num_failed_steps == 3


@pytest.mark.parametrize("num_blocks", [8, 64])
def test_sequences_that_fail_only_in_company_are_served_alone_in_the_end(num_blocks: int) -> None:
    engine, executor = simulated_engine(num_blocks)
    Poisoned(executor, crowd=2)
    served = requests(5)
    check_all_as_expected(run(engine, served), served)
    assert MAX_FAILURES <= engine.stats().num_failed_steps <= 2 * MAX_FAILURES


def test_a_suspect_that_is_cancelled_holds_nobody_up() -> None:
    engine, executor = simulated_engine(64)
    served = requests(3)
    for request in served:
        engine.add(request)
    executor.fail_next = True
    outputs = engine.step()
    outputs += engine.cancel("r0")
    outputs += run(engine)
    check_all_as_expected(outputs, served[1:])


def test_blocks_that_a_failed_step_should_have_cleared_are_cleared_by_the_next() -> None:
    engine, executor = simulated_engine(4)
    executor.taint_next = True
    run(engine, [tiny_request("bad", "x" * 12)])
    engine.add(tiny_request("r", "y" * 12))
    executor.fail_next = True
    engine.step()
    failed = executor.plans[-1].cleared
    engine.step()
    assert failed
    assert executor.plans[-1].cleared == failed


def test_when_no_step_works_any_more_the_loop_ends_and_fails_few() -> None:
    engine, executor = simulated_engine(64)
    Poisoned(executor, crowd=0)
    served = requests(20)
    with pytest.raises(EngineFault, match="told to fail"):
        run(engine, served)
    assert len(served) - engine.stats().num_running - engine.stats().num_waiting <= MAX_ENDED_IN_A_ROW


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(1, 40), st.sampled_from([1, 3]), st.sampled_from(["interactive", "bulk"])),
        min_size=1, max_size=9,
    ),
    st.integers(8, 30),
)  # fmt: skip
def test_any_mixture_ends_as_it_should(mixture: list[tuple[bool, int, int, str]], num_blocks: int) -> None:
    engine, executor = simulated_engine(num_blocks, max_running=4, max_tokens_per_step=24)
    Poisoned(executor)
    outputs: list[GenerationOutput] = []
    served: list[GenerationRequest] = []
    poisoned: list[str] = []
    for number, (is_poison, length, num_choices, priority_class) in enumerate(mixture):
        # Few in a row, so that this is not taken for a machine that is broken.
        is_poison = is_poison and len(poisoned) < MAX_ENDED_IN_A_ROW  # noqa: PLW2901 (a limit on what was drawn)
        request_id = f"r{number}"
        if is_poison:
            poisoned.append(request_id)
            engine.add(poison(request_id, priority_class))
        else:
            fields = {"num_choices": num_choices, "priority_class": priority_class, "seed": number}
            served.append(tiny_request(request_id, [7] * length, max_tokens=20, **fields))
            engine.add(served[-1])
        outputs += engine.step()
        check_blocks(engine)
    outputs += run(engine)
    check_all_as_expected(outputs, served)
    assert all(last(outputs, name).finish_reason == "error" for name in poisoned)


def break_detokenizer(engine: Engine, request_id: str) -> None:
    """Let the first token of a request be one that cannot be made text."""

    def feed(*_: object) -> str:
        raise UnicodeError("planted")

    generation = engine._roster.generation(request_id)  # the fault is planted where no interface leads
    assert generation is not None
    (choice,) = generation.choices.values()
    setattr(choice.stream._detokenizer, "feed", feed)  # noqa: B010 (mypy forbids it otherwise)


def test_a_token_that_cannot_be_made_text_ends_its_request_alone() -> None:
    engine, _ = simulated_engine(64)
    served = requests(2)
    for request in served:
        engine.add(request)
    engine.add(tiny_request("bad", "abc", ignore_eos=True, max_tokens=9))
    break_detokenizer(engine, "bad")
    outputs = run(engine)
    check_all_as_expected(outputs, served)
    end = last(outputs, "bad")
    assert (end.index, len(end.token_ids), end.finish_reason) == (0, 1, "error")
    assert end.error is not None
    assert "planted" in end.error.message


def test_a_request_that_cannot_be_taken_in_ends_alone_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, _ = simulated_engine(64)

    def failing_replay(
        request: GenerationRequest, choice: int, tokenizer: Tokenizer, eos_token_ids: tuple[int, ...]
    ) -> Replay:
        if request.request_id == "bad" and choice == 1:
            raise ZeroDivisionError("planted")
        return replay(request, choice, tokenizer, eos_token_ids)

    monkeypatch.setattr("engine.roster.replay", failing_replay)
    thread = EngineThread(engine)
    outputs: queue.Queue[GenerationOutput] = queue.Queue()
    thread.start()
    try:
        # Choice 0 is over already: its end must not be given out for a request that was never taken in.
        thread.submit(tiny_request("bad", "abc", num_choices=2, max_tokens=1, emitted={0: [5]}), outputs.put)
        refused = [outputs.get(timeout=WAIT_S) for _ in range(2)]
        assert [(output.choice, output.index) for output in refused] == [(0, 1), (1, 0)]
        assert all(output.error is not None and "planted" in output.error.message for output in refused)
        good = tiny_request("good", "abc", max_tokens=1)
        thread.submit(good, outputs.put)
        assert outputs.get(timeout=WAIT_S).token_ids == expected_tokens(good)
    finally:
        assert thread.stop(drain=False, timeout_s=WAIT_S)
    check_blocks(engine)
