"""Which records of an input partition are done, so that only the contiguous prefix of them is ever committed."""

from collections.abc import Collection
from typing import NamedTuple


class Holes(NamedTuple):
    """What is open of what was delivered: these offsets, which are below `until`, and everything from there on."""

    offsets: tuple[int, ...]
    until: int


class Ledger:
    """Out-of-order completion, in-order commit, for one partition.

    Offsets are opened in the order of delivery. Offsets that were never delivered (transaction markers, aborted or
    compacted records) lie between opened ones and count as done. So does what an earlier owner has done: it left
    `holes` behind the offset that it committed.
    """

    def __init__(self, base: int, holes: Holes | None = None) -> None:
        self._next = base
        # In the order of delivery. What is done is not kept: one record may stay open for hours, and hold up the rest.
        self._open: dict[int, None] = {}
        self._done_until = base
        self._holes = holes or Holes((), base)
        self._inherited = frozenset(self._holes.offsets)

    @property
    def next_offset(self) -> int:
        """The offset to poll next: behind everything that was opened."""
        return self._next

    @property
    def committable(self) -> int:
        """The offset to commit: everything below it is done."""
        return next(iter(self._open), self._next)

    @property
    def num_open(self) -> int:
        """How many delivered records are not done."""
        return len(self._open)

    def open(self, offset: int) -> bool:
        """Note a delivered record. False: it was delivered or done before, and must be dropped."""
        if offset < self._next:
            return False
        self._next = offset + 1
        if offset < self._holes.until and offset not in self._inherited:
            self._done_until = self._next
            return False
        self._open[offset] = None
        return True

    def close(self, offset: int) -> None:
        """Note that a record is done. Closing it twice is harmless: a duplicate may end with its original."""
        self._open.pop(offset, None)
        self._done_until = max(self._done_until, offset + 1)

    def advance(self, position: int) -> None:
        """Note that all below `position` was delivered or never will be (markers, aborted or compacted records)."""
        self._next = max(self._next, position)

    def would_commit(self, closing: Collection[int]) -> int:
        """The offset to commit if `closing` were done as well: what a transaction writes before it is sure."""
        return next((offset for offset in self._open if offset not in closing), self._next)

    def holes(self, closing: Collection[int] = ()) -> Holes:
        """What would be open if `closing` were done as well."""
        is_open = [offset for offset in self._open if offset not in closing]
        if self._next < self._holes.until:
            # What an earlier owner has done is still to be delivered: it stays known.
            is_open += [offset for offset in self._holes.offsets if offset >= self._next]
            return Holes(tuple(is_open), self._holes.until)
        until = max([self._done_until, *(offset + 1 for offset in closing)])
        return Holes(tuple(offset for offset in is_open if offset < until), until)
