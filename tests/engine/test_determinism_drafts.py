"""A request's tokens and logprobs are the same bits when its future was guessed, rightly or not."""

import pytest
import torch

from engine.proposer import NgramProposer
from engine.sequence import Sequence
from engine.types import GenerationRequest
from tests.engine.subjects import DTYPES, LONG, SHORT, Alone, assert_as_alone, bits, company, oracle, subjects
from tests.engine.tiny import run, tiny_engine, tiny_request, tokens


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("share_right", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(("size", "chunk", "num_threads"), [(0, 64, 1), (7, 64, 1), (2, 16, 2)])
def test_drafts_change_nothing(
    alone: Alone, dtype: torch.dtype, share_right: float, size: int, chunk: int,
    num_threads: int,
) -> None:  # fmt: skip
    """Right and wrong ones, for subjects and company, with every kind of penalty, beside chunks of prompts."""
    before = torch.get_num_threads()
    others = company(size, seed=size)
    known = run(tiny_engine(dtype), subjects() + others)
    engine = tiny_engine(
        dtype, max_tokens_per_step=chunk, max_running=min(chunk, 12), num_threads=num_threads,
        proposer=oracle(known, share_right=share_right),
    )  # fmt: skip
    try:
        outputs = run(engine, others + subjects())
    finally:
        torch.set_num_threads(before)
    assert_as_alone(alone, dtype, outputs)
    stats = engine.stats()
    assert stats.num_draft_tokens > 0
    assert stats.num_accepted_tokens == stats.num_draft_tokens * share_right or 0 < share_right < 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_prompt_lookup_changes_nothing_and_saves_steps(dtype: torch.dtype) -> None:
    """The random model repeats itself when it is greedy, and is made to by a bias when it is not."""

    def requests() -> list[GenerationRequest]:
        bias = {65: 30.0, 66: 30.0}  # only two tokens are left
        return [
            tiny_request("greedy", SHORT, max_tokens=80, top_logprobs=1, ignore_eos=True),
            tiny_request(
                "drawn", SHORT, max_tokens=80, top_logprobs=1, temperature=1.0, logit_bias=bias, num_choices=3
            ),
            tiny_request("long", LONG, max_tokens=40, temperature=0.9, logit_bias=bias, frequency_penalty=0.5),
        ]

    plain, drafting = (
        tiny_engine(dtype),
        tiny_engine(dtype, proposer=NgramProposer(shortest=1, longest=3, num_tokens=4)),
    )
    expected, outputs = run(plain, requests()), run(drafting, requests())
    for request in requests():
        for choice in range(request.sampling.num_choices):
            assert bits(outputs, request.request_id, choice) == bits(expected, request.request_id, choice)
    assert drafting.stats().num_accepted_tokens > 20
    assert drafting.stats().num_steps < plain.stats().num_steps


def test_a_wrong_draft_whose_numbers_are_not_finite_leaves_nothing_behind() -> None:
    """The model's weights for one token are damaged; only a draft ever has that token."""
    poison = 200
    request = tiny_request("r", SHORT, max_tokens=30, top_logprobs=0, logit_bias={poison: -100.0}, ignore_eos=True)

    class Poisoner:
        def propose(self, sequence: Sequence, max_tokens: int) -> list[int]:
            return [poison] * min(3, max_tokens)

        def forget(self, sequence: Sequence) -> None:
            pass

    outputs = []
    for proposer in (None, Poisoner()):
        engine = tiny_engine(proposer=proposer)
        model = engine.executor._model  # type: ignore[attr-defined]  # the fault is planted where no interface leads
        model._weights.embedding[poison] = torch.nan
        outputs.append(run(engine, [request]))
    assert engine.stats().num_draft_tokens > 0
    assert bits(outputs[1], "r") == bits(outputs[0], "r")
    assert len(tokens(outputs[1], "r")) == 30
