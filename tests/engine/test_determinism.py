"""A request's tokens and logprobs are the same bits whatever happens around it."""

import random
from collections import Counter

import pytest
import torch

from engine.engine import Engine
from engine.plan import StepPlan, StepResult
from engine.types import GenerationOutput, GenerationRequest
from tests.engine.structured.structures import WORDS
from tests.engine.subjects import DTYPES, MAX_TOKENS, SHORT, Alone, assert_as_alone, bits, company, oracle, subjects
from tests.engine.tiny import Clock, run, tiny_engine, tiny_request, tokens


def test_subjects_give_different_outputs_of_full_length(alone: Alone) -> None:
    """Otherwise the comparisons below would show nothing."""
    outputs = [bits_[0] for bits_ in alone.values()]
    assert all(len(output) == MAX_TOKENS for output in outputs)
    different = {tuple(output) for (dtype, _), (output, *_) in alone.items() if dtype == torch.float32}
    assert len(different) == len(subjects())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [0, 1, 2, 7, 31])
def test_company_changes_nothing(alone: Alone, dtype: torch.dtype, size: int) -> None:
    requests = company(size, seed=size) + subjects()
    random.Random(size).shuffle(requests)
    assert_as_alone(alone, dtype, run(tiny_engine(dtype), requests))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chunk", [1, 16, 40])
def test_chunks_of_the_prompt_change_nothing(alone: Alone, dtype: torch.dtype, chunk: int) -> None:
    engine = tiny_engine(dtype, max_tokens_per_step=chunk, max_running=min(chunk, 4))
    assert_as_alone(alone, dtype, run(engine, subjects()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_prefix_hit_changes_nothing(alone: Alone, dtype: torch.dtype) -> None:
    engine = tiny_engine(dtype)
    run(engine, subjects())
    outputs = run(engine, subjects())
    assert_as_alone(alone, dtype, outputs)
    assert all(output.num_cached_tokens >= 256 for output in outputs if output.request_id in ("shaped", "long"))


def in_a_tiny_pool() -> list[GenerationRequest]:
    """Eight requests of two choices, of which some do not end in one go if there are 16 blocks."""
    return [
        tiny_request(
            f"r{i}",
            [*SHORT, i],
            max_tokens=60,
            temperature=i % 2,
            seed=i,
            top_logprobs=1,
            num_choices=1 + i % 2,
            structure=WORDS if i % 4 > 1 else None,
        )
        for i in range(8)
    ]


@pytest.fixture(scope="module")
def roomy() -> dict[torch.dtype, list[GenerationOutput]]:
    """What they give one after the other, with room for all."""
    return {
        dtype: [output for request in in_a_tiny_pool() for output in run(tiny_engine(dtype), [request])]
        for dtype in DTYPES
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("share_right", [None, 0.8])
def test_two_preemptions_in_a_pool_of_sixteen_blocks_change_nothing(
    roomy: dict[torch.dtype, list[GenerationOutput]],
    dtype: torch.dtype,
    share_right: float | None,
    *,
    prefix_cache: bool,
) -> None:
    proposer = None if share_right is None else oracle(roomy[dtype], share_right=share_right)
    engine = tiny_engine(
        dtype, num_blocks=16, max_tokens_per_step=32, max_running=12, prefix_cache=prefix_cache, proposer=proposer
    )
    starts = count_starts(engine)
    outputs = run(engine, in_a_tiny_pool())
    assert max(starts.values()) >= 3, "nobody was preempted twice"
    for request in in_a_tiny_pool():
        for choice in range(request.sampling.num_choices):
            assert bits(outputs, request.request_id, choice) == bits(roomy[dtype], request.request_id, choice)


def count_starts(engine: Engine) -> Counter[int]:
    """How often each sequence begins, from now on."""
    starts: Counter[int] = Counter()
    executor = engine.executor
    run_plan = executor.run

    def counting(plan: StepPlan) -> StepResult:
        starts.update(start.sequence_id for start in plan.started)
        return run_plan(plan)

    executor.run = counting  # type: ignore[method-assign]  # plans pass here only
    return starts


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_threads_change_nothing(alone: Alone, dtype: torch.dtype, num_threads: int) -> None:
    before = torch.get_num_threads()
    try:
        assert_as_alone(alone, dtype, run(tiny_engine(dtype, num_threads=num_threads), subjects() + company(3, seed=9)))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_emitted", [1, 7, MAX_TOKENS - 1])
def test_a_successor_goes_on_with_the_very_tokens(alone: Alone, dtype: torch.dtype, num_emitted: int) -> None:
    for subject in subjects():
        token_ids, logprobs, _ = alone[dtype, subject.request_id]
        resumed = tiny_request("x", [0])
        fields = {name: getattr(subject, name) for name in ("request_id", "prompt_token_ids", "sampling")}
        resumed = GenerationRequest(**fields, emitted={0: token_ids[:num_emitted]})
        outputs = run(tiny_engine(dtype), [*company(3, seed=num_emitted), resumed])
        mine = [output for output in outputs if output.request_id == subject.request_id]
        assert [output.index for output in mine] == list(range(num_emitted, MAX_TOKENS))
        assert [i for output in mine for i in output.token_ids] == token_ids[num_emitted:]
        assert [p for output in mine for p in output.logprobs or []] == logprobs[num_emitted:]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_choice_is_what_it_is_without_its_siblings(dtype: torch.dtype) -> None:
    def request(num_choices: int) -> GenerationRequest:
        return tiny_request("r", SHORT, max_tokens=12, temperature=1.0, num_choices=num_choices, top_logprobs=0)

    five = run(tiny_engine(dtype), [request(5)])
    two = run(tiny_engine(dtype, prefix_cache=False, max_running=1), [request(2)])
    assert [tokens(five, "r", choice) for choice in (0, 1)] == [tokens(two, "r", choice) for choice in (0, 1)]
    assert len({tuple(tokens(five, "r", choice)) for choice in range(5)}) == 5


def test_a_late_arrival_changes_nothing_for_those_who_run(alone: Alone) -> None:
    engine: Engine = tiny_engine(clock=Clock())
    for subject in subjects():
        engine.add(subject)
    outputs: list[GenerationOutput] = []
    for late in company(12, seed=3):
        outputs += engine.step()
        engine.add(late)
    assert_as_alone(alone, torch.float32, outputs + run(engine))
