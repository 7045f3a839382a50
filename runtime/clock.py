"""Broker time, which is the only time of deadlines: estimated from the broker's own timestamps on our records."""

import time
from collections.abc import Callable

# An acknowledgement is heard late, never early: the earliest heard is the best. Clocks drift, so its lead wears off.
_DRIFT = 0.001


class BrokerClock:
    """Local monotonic time, shifted to what the broker says."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic, wall_s: Callable[[], float] = time.time):
        self._monotonic_s = monotonic_s
        self._heard_at_ms: float | None = None
        # Until the broker has said anything, the local clock is the best guess.
        self._shift_ms = (wall_s() - monotonic_s()) * 1000

    def hear(self, timestamp_ms: int) -> None:
        """Note the time that the broker gave to a record of ours that it has just acknowledged."""
        if timestamp_ms <= 0:
            return
        local_ms = self._monotonic_s() * 1000
        shift_ms = timestamp_ms - local_ms
        if self._heard_at_ms is not None:
            shift_ms = max(shift_ms, self._shift_ms - _DRIFT * (local_ms - self._heard_at_ms))
        self._shift_ms, self._heard_at_ms = shift_ms, local_ms

    def now_ms(self) -> float:
        """Broker time now, in milliseconds since the epoch; late by the way of the quickest acknowledgement."""
        return self._monotonic_s() * 1000 + self._shift_ms
