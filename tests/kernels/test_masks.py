"""A masked row is the row of a smaller vocabulary: nothing outside its mask has any weight, in any way of choosing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import ops
from kernels.sampling import RowMasks, TokenValues
from tests.kernels.test_sampling import VOCAB_SIZE, random_logits, reference, rows

Allowed = dict[int, list[int]]


def masks(allowed: Allowed, size: int = VOCAB_SIZE) -> RowMasks:
    """Masks of some rows, from the tokens that each may have."""
    bits = torch.zeros(len(allowed), -(-size // 32) * 32, dtype=torch.int64)
    for place, token_ids in enumerate(allowed.values()):
        bits[place, token_ids] = 1
    words = (bits.view(len(allowed), -1, 32) << torch.arange(32)).sum(-1)
    return RowMasks(rows=torch.tensor(list(allowed)), bits=words.to(torch.int32))


def masked(logits: torch.Tensor, allowed: Allowed) -> torch.Tensor:
    """The same logits, masked in the plainest way."""
    result = logits.clone()
    for row, token_ids in allowed.items():
        result[row] = -torch.inf
        result[row, token_ids] = logits[row, token_ids]
    return result


WAYS = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.3, "top_p": 0.7},
    {"temperature": 0.8, "top_k": 3},
    {"temperature": 0.8, "top_k": 1200},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 2.0, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(WAYS),
    st.dictionaries(
        st.integers(0, 5), st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=60, unique=True), min_size=1
    ),
    st.integers(0, 2**63 - 1),
)
def test_a_masked_row_is_drawn_as_if_the_other_tokens_did_not_exist(
    way: dict[str, float], allowed: Allowed, seed: int
) -> None:
    logits = random_logits(6)
    fields = {name: [value] * 6 for name, value in way.items()}
    sampling = rows(6, **fields, seed=[seed] * 6, index=list(range(6)), masks=masks(allowed))
    drawn = ops.sample(logits, sampling).token_ids.tolist()
    small = masked(logits, allowed)
    for row in range(6):
        # The reference sees only the tokens that the row may have, in the order of their ids.
        assert row not in allowed or drawn[row] in allowed[row]
        assert drawn[row] == reference(small[row], sampling, row)


def test_penalties_and_bias_do_not_bring_a_token_back() -> None:
    logits = random_logits(1)
    allowed = {0: [5, 9]}
    everything = TokenValues.of([(0, token_id, 100.0) for token_id in range(VOCAB_SIZE) if token_id not in (5, 9)])
    shapes = {"bias": everything, "repetition": everything, "penalties": TokenValues.of([(0, 5, -2.0), (0, 77, -90.0)])}
    for index in range(100):
        result = ops.sample(logits, rows(1, index=[index], masks=masks(allowed), **shapes))
        assert int(result.token_ids[0]) in (5, 9)


def test_logprobs_are_those_of_the_allowed_tokens_alone() -> None:
    logits = random_logits(4)
    allowed = {1: [3, 8, 1499], 3: [2]}
    result = ops.sample(logits, rows(4, masks=masks(allowed), logprob_rows=[0, 1, 3], num_top=5))
    assert result.logprobs is not None
    expected = masked(logits, allowed)[[0, 1, 3]].double().log_softmax(-1)
    assert torch.allclose(result.logprobs.top.double(), expected.topk(5).values, atol=1e-5)
    assert result.logprobs.top_token_ids[1, :3].sort().values.tolist() == [3, 8, 1499]
    assert result.logprobs.top[1, 3:].tolist() == [-torch.inf] * 2
    assert result.logprobs.chosen[2] == 0.0
    assert result.logprobs.top_token_ids[0].tolist() == logits[0].topk(5).indices.tolist()


def test_logits_stay_as_they_are() -> None:
    logits = random_logits(2)
    before = logits.clone()
    ops.sample(logits, rows(2, masks=masks({0: [1]}), logprob_rows=[0, 1], num_top=1))
    assert torch.equal(logits, before)


@pytest.mark.parametrize("size", [31, 32, 33, 272, 1500])
def test_every_token_of_any_vocabulary_has_its_bit(size: int) -> None:
    for token_id in (0, size // 2, size - 1):
        result = ops.sample(random_logits(1, size=size), rows(1, masks=masks({0: [token_id]}, size)))
        assert result.token_ids.tolist() == [token_id]


def test_a_row_without_any_token_harms_no_other() -> None:
    logits = random_logits(3)
    ways = {"temperature": [1.0, 0.0, 1.0], "top_p": [0.9, 1.0, 1.0], "logprob_rows": [0, 1, 2], "num_top": 2}
    clean = ops.sample(logits, rows(3, **ways, masks=masks({0: [4, 5], 1: [6]})))
    spoilt = ops.sample(logits, rows(3, **ways, masks=masks({0: [4, 5], 1: []})))
    assert clean.logprobs is not None
    assert spoilt.logprobs is not None
    for row in (0, 2):
        assert spoilt.token_ids[row] == clean.token_ids[row]
        assert torch.equal(spoilt.logprobs.top[row], clean.logprobs.top[row])
    assert spoilt.is_finite.tolist() == [True] * 3


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_masked_row_has_the_same_bits_in_any_company(way: dict[str, float]) -> None:
    count = 20
    logits = random_logits(count)
    allowed = {row: list(range(row, VOCAB_SIZE, row + 2)) for row in range(0, count, 2)}

    def run(picked: list[int]) -> tuple[list[int], list[list[float]]]:
        fields = {name: [value] * len(picked) for name, value in way.items()}
        mine = {place: allowed[row] for place, row in enumerate(picked) if row in allowed}
        result = ops.sample(
            logits[picked],
            rows(
                len(picked), **fields, seed=picked, masks=masks(mine) if mine else None,
                logprob_rows=list(range(len(picked))), num_top=3,
            ),
        )  # fmt: skip
        assert result.logprobs is not None
        return result.token_ids.tolist(), result.logprobs.top.tolist()

    token_ids, top = run(list(range(count)))
    for row in range(count):
        assert run([row]) == ([token_ids[row]], [top[row]])
    reversed_ids, reversed_top = run(list(range(count))[::-1])
    assert (reversed_ids[::-1], reversed_top[::-1]) == (token_ids, top)
