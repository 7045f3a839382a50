"""A median and how sure it is, from few samples and without assumptions about them."""

import math
from collections.abc import Sequence

import msgspec

# The chance that the interval misses the true median, at most.
_ALPHA = 0.05


class Estimate(msgspec.Struct, frozen=True):
    """A median with its 95 % interval."""

    median: float
    low: float
    high: float

    def scaled(self, factor: float) -> "Estimate":
        """In another unit."""
        return Estimate(self.median * factor, self.low * factor, self.high * factor)

    def __str__(self) -> str:
        return f"{self.median:.3g} [{self.low:.3g}, {self.high:.3g}]"


def median(samples: Sequence[float]) -> Estimate:
    """The median and the order statistics around it that hold the true one in 95 of 100 cases or more.

    The ranks follow from the binomial distribution alone (Conover, Practical Nonparametric Statistics, 3.2). Below six
    samples no two of them are that far apart: ValueError.
    """
    ordered, rank = sorted(samples), _outer_rank(len(samples))
    middle = len(ordered) // 2
    value = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return Estimate(value, ordered[rank], ordered[len(ordered) - 1 - rank])


def _outer_rank(num: int) -> int:
    """How many samples may be left out on each side."""
    missed, rank = 2.0 * 0.5**num, 0
    if missed > _ALPHA:
        raise ValueError(f"{num} samples are too few for a 95 % interval of the median: take 6 or more")
    while True:
        missed += 2.0 * math.comb(num, rank + 1) * 0.5**num
        if missed > _ALPHA:
            return rank
        rank += 1
