"""From parameters and tokens to rows, and back: what the kernels are asked is what the request means."""

from collections import Counter
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.plan import SequenceStart
from engine.sampling import SamplerState, TokenCounts, samples, sampling_rows, stop_token_ids
from kernels.sampling import RowLogprobs, SampledRows, TokenValues
from schemas.sampling import MAX_TOP_LOGPROBS, SamplingParams, TokenLogprob

EOS = (2, 0)


def state(prompt: list[int], output: list[int], choice: int = 0, **fields: Any) -> SamplerState:
    given: dict[str, Any] = {"max_tokens": 100, "seed": 4} | fields
    params = SamplingParams(**given)
    start = SequenceStart(choice + 10, choice, len(prompt), prompt + output, params)
    return SamplerState(start, EOS)


def places(values: TokenValues) -> dict[tuple[int, int], float]:
    return {
        (row, token): round(value, 5)
        for row, token, value in zip(
            values.rows.tolist(), values.token_ids.tolist(), values.values.tolist(), strict=True
        )
    }


@given(st.lists(st.integers(0, 6)), st.lists(st.integers(0, 6)))
def test_counts_are_kept_token_by_token(first: list[int], later: list[int]) -> None:
    counts = TokenCounts(first)
    for token_id in later:
        counts.add(token_id)
    assert dict(zip(counts.token_ids, counts.counts, strict=True)) == Counter(first + later)


def test_each_row_carries_its_own_parameters() -> None:
    rows = sampling_rows(
        [
            state([1], [], temperature=0.5, top_p=0.9, seed=7),
            state([1], [5, 6], choice=3, top_k=4, min_p=0.2, seed=2**63 - 1),
        ]
    )
    assert rows.temperature.tolist() == [0.5, 1.0]
    assert torch.equal(rows.top_p, torch.tensor([0.9, 1.0]))
    assert torch.equal(rows.min_p, torch.tensor([0.0, 0.2]))
    assert (rows.top_k.tolist(), rows.seed.tolist()) == ([0, 4], [7, 2**63 - 1])
    assert (rows.choice.tolist(), rows.index.tolist()) == ([0, 3], [0, 2])
    assert not any((rows.repetition, rows.penalties, rows.bias, rows.banned, rows.logprob_rows))


def test_presence_and_frequency_count_the_output_and_repetition_the_prompt_too() -> None:
    rows = sampling_rows(
        [
            state([1, 2], [3, 3, 4], presence_penalty=0.5, frequency_penalty=0.25),
            state([1, 1], [3], repetition_penalty=1.3),
            state([1], [3]),
        ]
    )
    assert places(rows.penalties) == {(0, 3): 1.0, (0, 4): 0.75}
    assert places(rows.repetition) == {(1, 1): 1.3, (1, 3): 1.3}


def test_a_state_that_was_rebuilt_equals_one_that_grew() -> None:
    fields: dict[str, Any] = {
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "repetition_penalty": 1.3,
        "min_tokens": 3,
    }
    grown, rebuilt = state([1, 2], [], **fields), state([1, 2], [3, 3, 4], **fields)
    for token_id in (3, 3, 4):
        grown.append(token_id)
    rows = [sampling_rows([one]) for one in (grown, rebuilt)]
    assert rows[0].index.tolist() == rows[1].index.tolist() == [3]
    for name in ("penalties", "repetition", "banned"):
        assert places(getattr(rows[0], name)) == places(getattr(rows[1], name))


def test_ends_are_banned_until_min_tokens() -> None:
    fields: dict[str, Any] = {"min_tokens": 2, "stop_token_ids": [9]}
    assert places(sampling_rows([state([1], [5], **fields)]).banned) == {(0, 0): 0.0, (0, 2): 0.0, (0, 9): 0.0}
    assert not sampling_rows([state([1], [5, 5], **fields)]).banned
    assert places(sampling_rows([state([1], [5], ignore_eos=True, **fields)]).banned) == {(0, 9): 0.0}


def test_stop_tokens_are_the_models_and_the_requests() -> None:
    params = SamplingParams(max_tokens=1, seed=0, stop_token_ids=[9, 2])
    assert stop_token_ids(params, EOS) == [0, 2, 9]


def test_bias_goes_to_its_tokens() -> None:
    assert places(sampling_rows([state([1], []), state([1], [], logit_bias={3: -2.5})]).bias) == {(1, 3): -2.5}


def test_logprobs_return_to_the_rows_that_asked_with_as_many_as_asked() -> None:
    states = [state([1], [], top_logprobs=1), state([1], []), state([1], [], choice=2, top_logprobs=0)]
    rows = sampling_rows(states)
    assert (rows.logprob_rows, rows.num_top) == ([0, 2], MAX_TOP_LOGPROBS)
    logprobs = RowLogprobs(
        rows=[0, 2],
        chosen=torch.tensor([-0.5, -1.5]),
        top_token_ids=torch.tensor([[4, 5], [6, 7]]),
        top=torch.tensor([[-0.25, -1.0], [-0.75, -2.0]]),
    )
    drawn = samples(states, SampledRows(torch.tensor([5, 6, 7]), torch.tensor([True, False, True]), logprobs))
    assert [(s.sequence_id, s.token_id) for s in drawn] == [(10, 5), (10, None), (12, 7)]
    assert drawn[0].logprob == TokenLogprob(token_id=5, logprob=-0.5, top=[(4, -0.25)])
    assert drawn[1].logprob is None
    assert drawn[2].logprob == TokenLogprob(token_id=7, logprob=-1.5, top=[])
