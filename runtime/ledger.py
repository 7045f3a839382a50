"""Which records of an input partition are done, so that only the contiguous prefix of them is ever committed."""

from collections import deque


class Ledger:
    """Out-of-order completion, in-order commit, for one partition.

    Offsets are opened in the order of delivery. Offsets that were never delivered (transaction markers, aborted or
    compacted records) lie between opened ones and count as done.
    """

    def __init__(self, base: int) -> None:
        self._next = base
        self._order: deque[int] = deque()
        self._open: set[int] = set()

    @property
    def next_offset(self) -> int:
        """The offset to poll next: behind everything that was opened."""
        return self._next

    @property
    def committable(self) -> int:
        """The offset to commit: everything below it is done."""
        while self._order and self._order[0] not in self._open:
            self._order.popleft()
        return self._order[0] if self._order else self._next

    @property
    def num_open(self) -> int:
        """How many delivered records are not done."""
        return len(self._open)

    def open(self, offset: int) -> bool:
        """Note a delivered record. False: it was delivered before (a rebalance repeats) and must be dropped."""
        if offset < self._next:
            return False
        self._order.append(offset)
        self._open.add(offset)
        self._next = offset + 1
        return True

    def close(self, offset: int) -> None:
        """Note that a record is done. Closing it twice is harmless: a duplicate may end with its original."""
        self._open.discard(offset)

    def advance(self, position: int) -> None:
        """Note that all below `position` was delivered or never will be (markers, aborted or compacted records)."""
        self._next = max(self._next, position)

    def would_commit(self, closing: set[int]) -> int:
        """The offset to commit if `closing` were done as well: what a transaction writes before it is sure."""
        # Asking for `committable` drops what is closed at the front: else each transaction would walk over all of it.
        if self.committable == self._next:
            return self._next
        return next((offset for offset in self._order if offset in self._open and offset not in closing), self._next)
