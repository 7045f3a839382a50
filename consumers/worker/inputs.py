"""The records of an input partition that are under way, and how far back in `tokens` a successor must read for them."""

from dataclasses import dataclass


@dataclass(slots=True)
class OpenInput:
    """One polled record. `num_open` of its members have not ended; its journal begins at `tokens_low` or behind it."""

    offset: int
    num_open: int
    tokens_low: int


class OpenInputs:
    """The polled records from the committed offset on, ended ones among them: a successor polls these again.

    The predecessor may have begun records up to `inherited_until`. Until they are polled as well, a successor must read
    from `inherited_low` on, as this owner did.
    """

    def __init__(self, *, inherited_low: int, inherited_until: int) -> None:
        self._inputs: dict[int, OpenInput] = {}
        self._inherited_low = inherited_low
        self._inherited_until = inherited_until

    def open(self, offset: int, *, num_members: int, tokens_low: int) -> OpenInput:
        """Note a polled record."""
        opened = OpenInput(offset, num_members, tokens_low)
        self._inputs[offset] = opened
        return opened

    def tokens_low(self, *, committed: int, next_offset: int, end_offset: int) -> int:
        """The lowest offset in `tokens` that matters when `committed` is committed and `next_offset` is polled next.

        `end_offset` where nothing matters. Records that have ended behind one that has not keep theirs: a successor
        must find their ends.
        """
        self._inputs = {offset: opened for offset, opened in self._inputs.items() if offset >= committed}
        lows = [end_offset, *(opened.tokens_low for opened in self._inputs.values())]
        if next_offset < self._inherited_until:
            lows.append(self._inherited_low)
        return min(lows)
