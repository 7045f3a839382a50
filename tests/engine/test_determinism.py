"""A request's tokens and logprobs are the same bits whatever happens around it."""

import random

import pytest
import torch

from engine.engine import Engine
from engine.types import GenerationOutput, GenerationRequest
from schemas.sampling import TokenLogprob
from tests.engine.tiny import Clock, run, text, tiny_engine, tiny_request, tokens

DTYPES = [torch.float32, torch.bfloat16]
MAX_TOKENS = 20
# Longer than one split of attention, so that merging splits is part of every comparison.
LONG = [(7 * i * i + 3 * i) % 256 for i in range(270)]
SHORT = list(b"Once upon a time")


def subjects() -> list[GenerationRequest]:
    """The requests whose bits are compared: greedy and sampled, short and long, with each kind of penalty."""
    return [
        tiny_request("greedy", SHORT, max_tokens=MAX_TOKENS, top_logprobs=3),
        tiny_request("sampled", SHORT, max_tokens=MAX_TOKENS, temperature=0.9, seed=5, top_logprobs=3),
        tiny_request(
            "shaped", LONG, max_tokens=MAX_TOKENS, temperature=1.3, top_p=0.9, top_k=40, min_p=0.01, seed=6,
            presence_penalty=0.4, frequency_penalty=0.3, repetition_penalty=1.1, logit_bias={9: 1.5}, top_logprobs=1,
            min_tokens=4,
        ),
        tiny_request("long", LONG[::-1], max_tokens=MAX_TOKENS, top_logprobs=0),
    ]  # fmt: skip


Bits = tuple[list[int], list[TokenLogprob], str]


def bits(outputs: list[GenerationOutput], request_id: str) -> Bits:
    """Tokens, logprobs and text; equal only if every bit is."""
    logprobs = [p for o in outputs if o.request_id == request_id for p in o.logprobs or []]
    return tokens(outputs, request_id), logprobs, text(outputs, request_id)


def company(size: int, seed: int) -> list[GenerationRequest]:
    """Other requests, of all lengths and kinds."""
    numbers = random.Random(seed)
    return [
        tiny_request(
            f"other{i}",
            [numbers.randrange(256) for _ in range(numbers.choice([1, 5, 16, 33, 100, 300]))],
            max_tokens=numbers.randrange(1, 40),
            temperature=numbers.choice([0.0, 0.7, 1.5]),
            top_p=numbers.choice([1.0, 0.8]),
            top_logprobs=numbers.choice([None, 5]),
            seed=i,
        )
        for i in range(size)
    ]


@pytest.fixture(scope="module")
def alone() -> dict[tuple[torch.dtype, str], Bits]:
    """What each subject gives by itself."""
    return {
        (dtype, subject.request_id): bits(run(tiny_engine(dtype), [subject]), subject.request_id)
        for dtype in DTYPES
        for subject in subjects()
    }


def assert_as_alone(
    alone: dict[tuple[torch.dtype, str], Bits], dtype: torch.dtype, outputs: list[GenerationOutput]
) -> None:
    for subject in subjects():
        assert bits(outputs, subject.request_id) == alone[dtype, subject.request_id]


def test_subjects_give_different_outputs_of_full_length(alone: dict[tuple[torch.dtype, str], Bits]) -> None:
    """Otherwise the comparisons below would show nothing."""
    outputs = [bits_[0] for bits_ in alone.values()]
    assert all(len(output) == MAX_TOKENS for output in outputs)
    assert len({tuple(output) for (dtype, _), (output, *_) in alone.items() if dtype == torch.float32}) == 4


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [0, 1, 2, 7, 31])
def test_company_changes_nothing(alone: dict[tuple[torch.dtype, str], Bits], dtype: torch.dtype, size: int) -> None:
    requests = company(size, seed=size) + subjects()
    random.Random(size).shuffle(requests)
    assert_as_alone(alone, dtype, run(tiny_engine(dtype), requests))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chunk", [1, 16, 40])
def test_chunks_of_the_prompt_change_nothing(
    alone: dict[tuple[torch.dtype, str], Bits], dtype: torch.dtype, chunk: int
) -> None:
    engine = tiny_engine(dtype, max_tokens_per_step=chunk, max_running=min(chunk, 4))
    assert_as_alone(alone, dtype, run(engine, subjects()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_prefix_hit_changes_nothing(alone: dict[tuple[torch.dtype, str], Bits], dtype: torch.dtype) -> None:
    engine = tiny_engine(dtype)
    run(engine, subjects())
    outputs = run(engine, subjects())
    assert_as_alone(alone, dtype, outputs)
    assert all(output.num_cached_tokens >= 256 for output in outputs if output.request_id in ("shaped", "long"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_preemptions_in_a_tiny_pool_change_nothing(dtype: torch.dtype, *, prefix_cache: bool) -> None:
    def requests() -> list[GenerationRequest]:
        return [
            tiny_request(f"r{i}", [*SHORT, i], max_tokens=60, temperature=i % 2, seed=i, top_logprobs=1)
            for i in range(8)
        ]

    engine = tiny_engine(dtype, num_blocks=16, max_tokens_per_step=16, max_running=8, prefix_cache=prefix_cache)
    outputs = run(engine, requests())
    assert engine.stats().num_preemptions >= 2
    for request in requests():
        expected = bits(run(tiny_engine(dtype), [request]), request.request_id)
        assert bits(outputs, request.request_id) == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_threads_change_nothing(
    alone: dict[tuple[torch.dtype, str], Bits], dtype: torch.dtype, num_threads: int
) -> None:
    before = torch.get_num_threads()
    try:
        assert_as_alone(alone, dtype, run(tiny_engine(dtype, num_threads=num_threads), subjects() + company(3, seed=9)))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("num_emitted", [1, 7, MAX_TOKENS - 1])
def test_a_successor_goes_on_with_the_very_tokens(
    alone: dict[tuple[torch.dtype, str], Bits], dtype: torch.dtype, num_emitted: int
) -> None:
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


def test_a_late_arrival_changes_nothing_for_those_who_run(alone: dict[tuple[torch.dtype, str], Bits]) -> None:
    engine: Engine = tiny_engine(clock=Clock())
    for subject in subjects():
        engine.add(subject)
    outputs: list[GenerationOutput] = []
    for late in company(12, seed=3):
        outputs += engine.step()
        engine.add(late)
    assert_as_alone(alone, torch.float32, outputs + run(engine))
