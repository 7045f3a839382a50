"""The records of an input partition that are under way, and how far back in `tokens` a successor must read for them."""

from collections import deque
from dataclasses import dataclass


@dataclass(slots=True)
class OpenInput:
    """One polled record. `num_open` of its members have not ended; its journal begins at `tokens_low` or behind it.

    `tokens_low` may be lowered until the next record is opened.
    """

    offset: int
    num_open: int
    tokens_low: int


class OpenInputs:
    """The polled records from the committed offset on, ended ones among them: a successor polls these again.

    The predecessor may have begun records up to `inherited_until`. Until they are polled as well, a successor must read
    from `inherited_low` on, as this owner did.
    """

    def __init__(self, *, inherited_low: int, inherited_until: int) -> None:
        # Only what is lower than all behind it, so that the first is the lowest: a record may stay open for hours, and
        # every commit asks.
        self._lows: deque[OpenInput] = deque()
        self._inherited_low = inherited_low
        self._inherited_until = inherited_until

    def open(self, offset: int, *, num_members: int, tokens_low: int) -> OpenInput:
        """Note a polled record."""
        self._drop_higher()
        opened = OpenInput(offset, num_members, tokens_low)
        self._lows.append(opened)
        return opened

    def tokens_low(self, *, committed: int, next_offset: int, end_offset: int) -> int:
        """The lowest offset in `tokens` that matters when `committed` is committed and `next_offset` is polled next.

        `end_offset` where nothing matters. Records that have ended behind one that has not keep theirs: a successor
        must find their ends.
        """
        while self._lows and self._lows[0].offset < committed:
            self._lows.popleft()
        self._drop_higher()
        lows = [end_offset, self._lows[0].tokens_low] if self._lows else [end_offset]
        if next_offset < self._inherited_until:
            lows.append(self._inherited_low)
        return min(lows)

    def _drop_higher(self) -> None:
        """Forget those before the last one that have no lower offset than it: it is asked for longer than they are."""
        if not self._lows:
            return
        last = self._lows.pop()
        while self._lows and self._lows[-1].tokens_low >= last.tokens_low:
            self._lows.pop()
        self._lows.append(last)
