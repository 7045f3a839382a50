"""How often a partition may fail before the process ends: one that cannot be kept must not be taken over for ever."""

from collections import deque

from schemas.errors import Fenced

# Two fences so close, while the group still says that the partition is ours: another process uses our id.
FENCE_WINDOW_S = 30.0
MAX_FENCES = 2

FAILURE_WINDOW_S = 120.0
MAX_FAILURES = 5


class FailureLimit:
    """Counts the failures of one partition."""

    def __init__(self) -> None:
        self._fences: deque[float] = deque()
        self._failures: deque[float] = deque()

    def note(self, failure: BaseException, now_s: float) -> bool:
        """Note one failure. True: there were too many, the process must end."""
        if isinstance(failure, Fenced):
            return _count(self._fences, now_s, FENCE_WINDOW_S) >= MAX_FENCES
        return _count(self._failures, now_s, FAILURE_WINDOW_S) >= MAX_FAILURES


def _count(times_s: deque[float], now_s: float, window_s: float) -> int:
    times_s.append(now_s)
    while times_s[0] <= now_s - window_s:
        times_s.popleft()
    return len(times_s)
