"""Broker time, which is the only time of deadlines: estimated from the broker's own timestamps on our records."""

import time
from collections.abc import Callable


class BrokerClock:
    """Local monotonic time, shifted to what the broker said last."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic, wall_s: Callable[[], float] = time.time):
        self._monotonic_s = monotonic_s
        # Until the broker has said anything, the local clock is the best guess.
        self._shift_ms = (wall_s() - monotonic_s()) * 1000

    def hear(self, timestamp_ms: int) -> None:
        """Note the time that the broker gave to a record of ours that it has just acknowledged."""
        if timestamp_ms > 0:
            self._shift_ms = timestamp_ms - self._monotonic_s() * 1000

    def now_ms(self) -> float:
        """Broker time now, in milliseconds since the epoch; late by the way of an acknowledgement."""
        return self._monotonic_s() * 1000 + self._shift_ms
