"""Keeps a library that says one thing a thousand times a second from filling the disk: aiokafka without its broker."""

import logging
import time
from collections.abc import Callable

# Of one message (whatever its arguments), one line in so many seconds.
INTERVAL_S = 5.0
# Some messages come with their values in them, each a new one: they are not remembered for ever.
_MAX_MESSAGES = 1_000


class RepeatFilter(logging.Filter):
    """Lets the same message of the same logger through once an interval; the next one says how many were left out.

    Lines of our own and tracebacks are always written: each is an event that somebody may look for.
    """

    def __init__(self, *loggers: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._loggers = loggers
        self._clock = clock
        self._said_at_s: dict[tuple[str, str], float] = {}
        self._num_left_out: dict[tuple[str, str], int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written."""
        if record.exc_info or not record.name.startswith(self._loggers):
            return True
        if len(self._said_at_s) > _MAX_MESSAGES:
            self._said_at_s.clear()
        key = (record.name, str(record.msg))
        now_s = self._clock()
        if now_s - self._said_at_s.get(key, -INTERVAL_S) < INTERVAL_S:
            self._num_left_out[key] = self._num_left_out.get(key, 0) + 1
            return False
        self._said_at_s[key] = now_s
        if num_left_out := self._num_left_out.pop(key, 0):
            record.msg, record.args = f"{record.getMessage()} ({num_left_out} more like it)", ()
        return True
