"""The interval of a median holds the true one as often as it says."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.estimate import Estimate, median

FINITE = st.floats(-1e6, 1e6)


@given(st.lists(FINITE, min_size=6, max_size=60))
def test_the_median_lies_in_its_interval_whose_ends_are_samples(samples: list[float]) -> None:
    found = median(samples)
    assert found.median == statistics.median(samples)
    assert found.low <= found.median <= found.high
    assert {found.low, found.high} <= set(samples)


@pytest.mark.parametrize("num", range(6, 60))
def test_the_interval_is_the_narrowest_that_is_sure_enough(num: int) -> None:
    """The chance to miss is that of so few heads, or so few tails, in a row of coins."""

    def missed(rank: int) -> float:
        return 2.0 * sum(math.comb(num, heads) for heads in range(rank + 1)) * 0.5**num

    rank = int(median(range(num)).low)
    assert missed(rank) <= 0.05 < missed(rank + 1)


def test_it_holds_the_true_median_in_95_of_100_cases() -> None:
    rng = random.Random(1)
    hits = 0
    for _ in range(2_000):
        found = median([rng.expovariate(1.0) for _ in range(12)])
        hits += found.low <= math.log(2) <= found.high
    assert hits >= 0.95 * 2_000


@pytest.mark.parametrize("num", range(6))
def test_few_samples_are_refused(num: int) -> None:
    with pytest.raises(ValueError, match="6 or more"):
        median([1.0] * num)


def test_scaling_scales_all_three() -> None:
    assert Estimate(2.0, 1.0, 3.0).scaled(10) == Estimate(20.0, 10.0, 30.0)
