"""How often a partition may fail before the process ends: one that cannot be kept must not be taken over for ever."""

from collections import deque
from typing import NamedTuple

from schemas.errors import Fenced

# Two fences so close, while the group still says that the partition is ours: another process uses our id.
FENCE_WINDOW_S = 30.0
MAX_FENCES = 2

# With the pauses below, a broker that is away for a minute is borne.
FAILURE_WINDOW_S = 180.0
MAX_FAILURES = 12
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0


class Verdict(NamedTuple):
    """Whether a failure is borne, and after which pause the partition may be tried again."""

    is_borne: bool
    pause_s: float


class FailureLimit:
    """Counts the failures of one partition."""

    def __init__(self) -> None:
        self._fences: deque[float] = deque()
        self._failures: deque[float] = deque()

    def note(self, failure: BaseException, now_s: float) -> Verdict:
        """Note one failure of a partition that is still ours."""
        if isinstance(failure, Fenced):
            return Verdict(_count(self._fences, now_s, FENCE_WINDOW_S) < MAX_FENCES, 0.0)
        num_failures = _count(self._failures, now_s, FAILURE_WINDOW_S)
        return Verdict(num_failures < MAX_FAILURES, min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (num_failures - 1)))


def _count(times_s: deque[float], now_s: float, window_s: float) -> int:
    times_s.append(now_s)
    while times_s[0] <= now_s - window_s:
        times_s.popleft()
    return len(times_s)
