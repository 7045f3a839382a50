"""Work that hangs: noticed from a thread of its own, since whoever hangs can tell nobody.

Time in which this process did not run (a frozen container, SIGSTOP) is not the work's, and not counted.
"""

import threading
import time
from collections.abc import Callable, Hashable

TICK_S = 0.25
# Between two looks at most so much counts: what is beyond was not time of ours.
_MAX_GAP_S = 4 * TICK_S


class StallTimer:
    """How long the same piece of work is seen, look by look. Pure: time comes in from outside."""

    def __init__(self) -> None:
        self._work: Hashable | None = None
        self._looked_at_s: float | None = None
        self.age_s = 0.0
        self.longest_ended_s = 0.0

    def look(self, work: Hashable | None, now_s: float) -> float:
        """Take what is being done now, None for nothing; returns its age in seconds, as far as it was seen."""
        gap_s = 0.0 if self._looked_at_s is None else min(now_s - self._looked_at_s, _MAX_GAP_S)
        self._looked_at_s = now_s
        if work is not None and work == self._work:
            self.age_s += gap_s
            return self.age_s
        # Seen at both ends with an error of one look each: what ended lasted at most one gap longer than it was seen.
        self.longest_ended_s = max(self.longest_ended_s, self.age_s)
        self._work, self.age_s = work, 0.0
        return self.age_s


class StallWatch:
    """Looks at a piece of work from a thread, and acts once when it is older than `limit_s`.

    `work` names what is being done now: a value that differs from one piece to the next, or None. `on_limit` is called
    in the thread of the watch with the age in seconds.
    """

    def __init__(
        self, work: Callable[[], Hashable | None], *, limit_s: float, on_limit: Callable[[float], None]
    ) -> None:
        self._work = work
        self._limit_s = limit_s
        self._on_limit = on_limit
        self._timer = StallTimer()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stall-watch", daemon=True)

    @property
    def age_s(self) -> float:
        """How long the present piece of work has been seen."""
        return self._timer.age_s

    @property
    def longest_ended_s(self) -> float:
        """The longest piece of work that came to its end."""
        return self._timer.longest_ended_s

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._is_stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._is_stopping.wait(TICK_S):
            age_s = self._timer.look(self._work(), time.monotonic())
            if age_s > self._limit_s:
                self._on_limit(age_s)
                return
