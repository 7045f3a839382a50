"""Turns that wait until their heavy fields are in object storage, and those of the same key behind them. Pure.

Storage may be away for long: nothing else of the partition waits with them, and each ends at its own deadline.
"""

from collections import deque
from typing import NamedTuple

from consumers.cancels import CancelOf
from consumers.gate.admission import Deposit, Forward
from consumers.transactor import Position
from schemas.envelope import Envelope
from schemas.names import Lane


class Held(NamedTuple):
    """An admitted turn and the record that it came as, which is open until the turn has been written or has ended."""

    decision: Forward | Deposit
    lane: Lane
    position: Position

    @property
    def envelope(self) -> Envelope:
        """Who asked, until when."""
        return self.decision.turn.envelope

    @property
    def num_bytes(self) -> int:
        """What it keeps in memory."""
        content = self.decision.content if isinstance(self.decision, Deposit) else b""
        return len(self.decision.value) + len(content)


class Moved(NamedTuple):
    """What happens when something changes: turns to pass on now, in order, and the turn whose content is put next."""

    passed_on: list[Held]
    to_put: Held | None = None


class _Key(NamedTuple):
    tenant: str
    key: str


class Deposits:
    """One queue for each key with a deposit at its head: what is put is always the head."""

    def __init__(self) -> None:
        self._queues: dict[_Key, deque[Held]] = {}
        self.num_bytes = 0

    def add(self, held: Held) -> Moved:
        """A turn is admitted: passed on at once, unless it has to be put or stands behind one that has."""
        queue = self._queues.get(_key(held))
        if queue is None and isinstance(held.decision, Forward):
            return Moved([held])
        self.num_bytes += held.num_bytes
        if queue is not None:
            queue.append(held)
            return Moved([])
        self._queues[_key(held)] = deque([held])
        return Moved([], held)

    def put(self, held: Held) -> Moved:
        """The content of a head is durable. It may have ended meanwhile: then nothing follows."""
        queue = self._queues.get(_key(held))
        if queue is None or queue[0].position != held.position:
            return Moved([])
        return self._release(_key(held), [self._take(queue)])

    def remove(self, held: Held) -> Moved:
        """A turn has ended while it was here."""
        queue = self._queues[_key(held)]
        is_head = queue[0] is held
        queue.remove(held)
        self.num_bytes -= held.num_bytes
        return self._release(_key(held), []) if is_head else Moved([])

    def ending(self, now_ms: float, cancel_of: CancelOf) -> list[Held]:
        """Those whose deadline has come or that were cancelled, to be removed; those of one key in their order."""
        all_held = (held for queue in self._queues.values() for held in queue)
        return [held for held in all_held if held.envelope.deadline_ms <= now_ms or cancel_of(held.envelope)]

    def find(self, envelope: Envelope) -> Held | None:
        """The turn with this identity, if it is here."""
        queue = self._queues.get(_Key(envelope.tenant, envelope.key), ())
        return next((held for held in queue if held.envelope.request_id == envelope.request_id), None)

    def _release(self, key: _Key, passed_on: list[Held]) -> Moved:
        """Pass on all before the next deposit, which becomes the head."""
        queue = self._queues[key]
        while queue and isinstance(queue[0].decision, Forward):
            passed_on.append(self._take(queue))
        if queue:
            return Moved(passed_on, queue[0])
        del self._queues[key]
        return Moved(passed_on)

    def _take(self, queue: deque[Held]) -> Held:
        held = queue.popleft()
        self.num_bytes -= held.num_bytes
        return held


def _key(held: Held) -> _Key:
    return _Key(held.envelope.tenant, held.envelope.key)
