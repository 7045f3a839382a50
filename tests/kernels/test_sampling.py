"""Each way of choosing a token against a plain reference of it, one row and one token at a time."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import ops
from kernels.cpu.philox import uniform_all
from kernels.sampling import SamplingRows, TokenValues

VOCAB_SIZE = 1500  # above the number of candidates that are sorted at first
NONE = TokenValues.of([])


def rows(count: int, **fields: Any) -> SamplingRows:
    """Rows with everything off; lists become tensors."""
    floats = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0}
    ints = {"top_k": 0, "seed": 3, "choice": 0, "index": 0}
    values = {name: fields.pop(name, [default] * count) for name, default in (floats | ints).items()}
    given: dict[str, Any] = dict.fromkeys(("repetition", "penalties", "bias", "banned"), NONE) | fields
    given |= {n: torch.tensor(v, dtype=torch.float32 if n in floats else torch.int64) for n, v in values.items()}
    return SamplingRows(**given)


def random_logits(count: int, seed: int = 0, size: int = VOCAB_SIZE) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed)) * 4


def kept_tokens(logits: list[float], *, top_k: int, top_p: float, min_p: float) -> set[int]:
    """Which tokens may be drawn, by the definitions: min_p, then top_k, then top_p of what top_k left."""
    order = sorted(range(len(logits)), key=lambda i: -logits[i])
    weights = [math.exp(x - logits[order[0]]) for x in logits]
    in_k = [i for i in order if not top_k or logits[i] >= logits[order[min(top_k, len(order)) - 1]]]
    total, mass, in_p = sum(weights[i] for i in in_k), 0.0, []
    for i in in_k:
        if top_p < 1 and mass >= top_p * total:
            break
        in_p.append(i)
        mass += weights[i]
    return {i for i in in_p if weights[i] >= min_p}


def reference(logits: torch.Tensor, sampling: SamplingRows, row: int) -> int:
    """The winner of the race between the tokens that are kept."""
    temperature = float(sampling.temperature[row])
    if temperature == 0:
        return int(np.argmax(logits.numpy()))
    scaled = (logits / temperature).tolist()
    kept = kept_tokens(
        scaled,
        top_k=int(sampling.top_k[row]),
        top_p=float(sampling.top_p[row]),
        min_p=float(sampling.min_p[row]),
    )
    place = (sampling.seed[[row]], sampling.choice[[row]], sampling.index[[row]])
    noise = uniform_all(*place, len(scaled))[0].tolist()
    return max(kept, key=lambda i: scaled[i] - math.log(-math.log(noise[i])))


def test_temperature_0_is_greedy_and_takes_the_first_of_equals() -> None:
    logits = random_logits(3)
    logits[1, 7] = logits[1, 900] = 99.0
    result = ops.sample(logits, rows(3, temperature=[0.0] * 3))
    assert result.token_ids.tolist() == [int(logits[0].argmax()), 7, int(logits[2].argmax())]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.3, 1.0, 1.7, 8.0]),
            st.sampled_from([0, 1, 5, 50, 1200]),
            st.sampled_from([1.0, 0.99, 0.9, 0.5, 0.001]),
            st.sampled_from([0.0, 0.01, 0.3, 1.0]),
            st.integers(0, 2**63 - 1),
            st.integers(0, 5000),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_every_mix_of_temperature_top_k_top_p_and_min_p_draws_what_the_reference_draws(
    drawn: list[tuple[float, int, float, float, int, int]],
) -> None:
    temperature, top_k, top_p, min_p, seed, index = map(list, zip(*drawn, strict=True))
    logits = random_logits(len(drawn), seed=len(drawn))
    sampling = rows(len(drawn), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, index=index)
    expected = [reference(logits[row], sampling, row) for row in range(len(drawn))]
    assert ops.sample(logits, sampling).token_ids.tolist() == expected


def test_a_flat_distribution_needs_more_candidates_than_are_sorted_at_first() -> None:
    logits = torch.linspace(0, 0.5, VOCAB_SIZE)[None].repeat(8, 1)
    sampling = rows(8, top_p=[0.95] * 8, seed=list(range(8)))
    expected = [reference(logits[row], sampling, row) for row in range(8)]
    assert ops.sample(logits, sampling).token_ids.tolist() == expected


@pytest.mark.parametrize("top_k", [0, 3])
def test_draws_follow_the_distribution(top_k: int) -> None:
    """Chi-square over 4,000 draws that differ in their index only."""
    probabilities = torch.tensor([0.4, 0.3, 0.2, 0.06, 0.04])
    count = 4000
    sampling = rows(count, index=list(range(count)), top_k=[top_k] * count)
    token_ids = ops.sample(probabilities.log().repeat(count, 1), sampling).token_ids
    kept = probabilities[: top_k or 5] / probabilities[: top_k or 5].sum()
    counts = torch.bincount(token_ids, minlength=5).double()
    assert counts[top_k or 5 :].sum() == 0
    chi_square = ((counts[: len(kept)] - count * kept) ** 2 / (count * kept)).sum().item()
    assert chi_square < 20  # 4 degrees of freedom: exceeded once in 2,000 seeds; this seed is fixed


def test_penalties_bias_and_bans_in_their_order() -> None:
    logits = random_logits(3)
    before = logits.clone()
    repetition = TokenValues.of([(0, 5, 1.5), (0, 6, 1.5), (2, 5, 0.5)])
    penalties = TokenValues.of([(0, 5, 0.7), (1, 9, -0.3)])
    bias = TokenValues.of([(0, 5, 2.0), (1, 8, 50.0), (2, 3, 100.0)])
    banned = TokenValues.of([(2, 3, 0.0)])
    expected = logits.clone()
    for row, token, factor in ((0, 5, 1.5), (0, 6, 1.5), (2, 5, 0.5)):
        value = expected[row, token]
        expected[row, token] = value / factor if value > 0 else value * factor
    expected[0, 5] += -0.7 + 2.0
    expected[1, 9] += 0.3
    expected[1, 8] += 50.0
    expected[2, 3] = -torch.inf
    changes = {"repetition": repetition, "penalties": penalties, "bias": bias, "banned": banned}
    result = ops.sample(logits, rows(3, temperature=[0.0, 0.0, 0.0], **changes))
    assert result.token_ids.tolist() == expected.argmax(-1).tolist()
    drawn = ops.sample(logits, rows(3, **changes)).token_ids.tolist()
    assert drawn == [reference(expected[row], rows(3), row) for row in range(3)]
    assert torch.equal(logits, before)


def test_a_banned_token_is_never_drawn() -> None:
    logits = torch.tensor([[50.0, 0.0, 0.0]]).repeat(200, 1)
    banned = TokenValues.of([(row, 0, 0.0) for row in range(200)])
    result = ops.sample(logits, rows(200, index=list(range(200)), banned=banned))
    assert set(result.token_ids.tolist()) == {1, 2}


def test_logprobs_are_the_models_own() -> None:
    logits = random_logits(4)
    bias = TokenValues.of([(row, 11, 60.0) for row in range(4)])
    result = ops.sample(logits, rows(4, bias=bias, logprob_rows=[1, 3], num_top=5))
    assert result.token_ids.tolist() == [11] * 4
    assert result.logprobs is not None
    expected = logits[[1, 3]].double().log_softmax(-1)
    assert torch.allclose(result.logprobs.chosen.double(), expected[:, 11], atol=1e-5)
    assert torch.equal(result.logprobs.top_token_ids, expected.topk(5).indices)
    assert torch.allclose(result.logprobs.top.double(), expected.topk(5).values, atol=1e-5)


def test_a_row_that_is_not_finite_is_reported_and_harms_no_other() -> None:
    logits = random_logits(4)
    sampling = rows(4, temperature=[0.0, 1.0, 1.0, 1.0], top_p=[1.0, 1.0, 0.9, 1.0], logprob_rows=[3], num_top=1)
    clean = ops.sample(logits, sampling)
    logits[0, 3], logits[2, 4] = torch.nan, torch.inf
    result = ops.sample(logits, sampling)
    assert result.is_finite.tolist() == [False, True, False, True]
    assert result.token_ids[[1, 3]].tolist() == clean.token_ids[[1, 3]].tolist()


@pytest.mark.parametrize("size", [1500, 1501])
def test_a_row_has_the_same_bits_in_any_company(size: int) -> None:
    count = 40
    logits = random_logits(count, size=size)
    fields: dict[str, list[Any]] = {
        "temperature": [[0.0, 0.7, 1.5][row % 3] for row in range(count)],
        "top_p": [[1.0, 0.9][row % 2] for row in range(count)],
        "top_k": [[0, 0, 0, 20][row % 4] for row in range(count)],
        "seed": list(range(count)),
    }
    everything = ops.sample(logits, rows(count, **fields, logprob_rows=list(range(count)), num_top=3))
    assert everything.logprobs is not None
    for row in range(count):
        mine = {name: values[row : row + 1] for name, values in fields.items()}
        alone = ops.sample(logits[row : row + 1], rows(1, **mine, logprob_rows=[0], num_top=3))
        assert alone.logprobs is not None
        assert alone.token_ids[0] == everything.token_ids[row]
        assert alone.logprobs.chosen[0] == everything.logprobs.chosen[row]
        assert torch.equal(alone.logprobs.top[0], everything.logprobs.top[row])
