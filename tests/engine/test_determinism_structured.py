"""Answers held to a structure are the same bits whatever happens around them, and when their future was guessed."""

from collections.abc import Iterator

import pytest
import torch

from engine.engine import Engine
from engine.proposer import NgramProposer
from engine.types import GenerationOutput, GenerationRequest
from tests.engine.structured.structures import PERSON, of_choice, of_regex
from tests.engine.subjects import DTYPES, LONG, SHORT, bits, company, oracle
from tests.engine.tiny import run, tiny_engine, tiny_request

Outputs = dict[torch.dtype, list[GenerationOutput]]


def structured_subjects() -> list[GenerationRequest]:
    """Greedy and drawn ones, with each kind of structure, one with company of itself."""
    return [
        tiny_request("person", SHORT, max_tokens=120, structure=PERSON, temperature=1.0, seed=4, top_logprobs=2,
                     num_choices=2),
        tiny_request("greedy", LONG, max_tokens=40, structure=PERSON, top_logprobs=1),
        tiny_request("regex", SHORT, max_tokens=60, structure=of_regex(r"(\d{3}-){6}end"), temperature=0.8, seed=5,
                     frequency_penalty=0.6, repetition_penalty=1.1, top_logprobs=1, min_tokens=4),
        tiny_request("choice", SHORT, max_tokens=30, structure=of_choice("yes and no", "yes and yes"), temperature=1.0),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def structured_alone() -> Outputs:
    """What each gives by itself."""
    return {
        dtype: [output for request in structured_subjects() for output in run(tiny_engine(dtype), [request])]
        for dtype in DTYPES
    }


def assert_as_alone(alone: Outputs, dtype: torch.dtype, outputs: list[GenerationOutput]) -> None:
    for request in structured_subjects():
        for choice in range(request.sampling.num_choices):
            expected = bits(alone[dtype], request.request_id, choice)
            assert len(expected[0]) > 5
            assert bits(outputs, request.request_id, choice) == expected


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [0, 1, 2, 7, 31])
def test_company_changes_no_structured_answer(structured_alone: Outputs, dtype: torch.dtype, size: int) -> None:
    outputs = run(tiny_engine(dtype), [*company(size, seed=size), *structured_subjects()])
    assert_as_alone(structured_alone, dtype, outputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("chunk", [1, 16, 40])
def test_chunks_change_no_structured_answer(structured_alone: Outputs, dtype: torch.dtype, chunk: int) -> None:
    engine = tiny_engine(dtype, max_tokens_per_step=chunk, max_running=min(chunk, 4))
    assert_as_alone(structured_alone, dtype, run(engine, structured_subjects()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_prefix_hit_changes_no_structured_answer(structured_alone: Outputs, dtype: torch.dtype) -> None:
    engine = tiny_engine(dtype)
    run(engine, structured_subjects())
    assert_as_alone(structured_alone, dtype, run(engine, structured_subjects()))
    assert engine.stats().num_cached_tokens > 256


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("share_right", [None, 0.8])
def test_preemptions_change_no_structured_answer(
    structured_alone: Outputs, dtype: torch.dtype, share_right: float | None
) -> None:
    proposer = None if share_right is None else oracle(structured_alone[dtype], share_right=share_right)
    engine = tiny_engine(dtype, num_blocks=20, max_tokens_per_step=32, max_running=8, proposer=proposer)
    assert_as_alone(structured_alone, dtype, run(engine, structured_subjects()))
    assert engine.stats().num_preemptions >= 2


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("share_right", [None, 0.0, 0.6, 1.0])
def test_drafts_and_threads_change_no_structured_answer(
    structured_alone: Outputs, dtype: torch.dtype, share_right: float | None, threads: int
) -> None:
    others = company(3, seed=9)
    known = structured_alone[dtype] + run(tiny_engine(dtype), others)
    proposer = None if share_right is None else oracle(known, share_right=share_right)
    engine = tiny_engine(dtype, num_threads=threads, proposer=proposer)
    assert_as_alone(structured_alone, dtype, run(engine, others + structured_subjects()))
    stats = engine.stats()
    assert (stats.num_draft_tokens > 0) == (share_right is not None)
    assert stats.num_accepted_tokens == stats.num_draft_tokens * (share_right or 0) or share_right == 0.6


def test_prompt_lookup_under_a_schema_saves_steps(structured_alone: Outputs) -> None:
    """A list of equal things is what a schema makes predictable."""
    lookup = NgramProposer(shortest=1, longest=3, num_tokens=4)
    engines: list[Engine] = [tiny_engine(), tiny_engine(proposer=lookup)]
    request = tiny_request("r", SHORT, max_tokens=120, structure=of_regex("(abcd ){20}"), temperature=1.0, seed=1)
    plain, drafted = (run(engine, [request]) for engine in engines)
    assert bits(drafted, "r") == bits(plain, "r")
    assert engines[1].stats().num_accepted_tokens > 50
    assert engines[1].stats().num_steps < engines[0].stats().num_steps / 2
