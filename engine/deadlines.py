"""Which running request is too late next. A request that has ended in time is not kept until its deadline passes."""

import heapq
from collections.abc import Iterator
from itertools import count

from engine.generation import Generation

# Entries of ended requests that may stay before they are swept out, beside as many as there are live ones.
MAX_STALE = 256


class Deadlines:
    """A heap of requests by deadline."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Generation]] = []
        self._numbers = count()
        self._sweep_at = MAX_STALE

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, deadline_s: float, generation: Generation) -> None:
        """Watch a request."""
        heapq.heappush(self._heap, (deadline_s, next(self._numbers), generation))
        if len(self._heap) > self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[2].choices]
            heapq.heapify(self._heap)
            self._sweep_at = 2 * len(self._heap) + MAX_STALE

    def pop_passed(self, now_s: float) -> Iterator[Generation]:
        """Requests that are still running and whose deadline has passed; each once."""
        while self._heap and self._heap[0][0] <= now_s:
            *_, generation = heapq.heappop(self._heap)
            if generation.choices:
                yield generation
