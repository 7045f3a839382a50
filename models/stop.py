"""Stop strings over streamed text: what may be the beginning of one is held back until it is clear."""

from collections.abc import Iterable

import msgspec

from schemas.errors import InvalidValue


class StopResult(msgspec.Struct, frozen=True):
    """Text that may be shown, and the stop string that ended the output, if one did."""

    text: str
    stop: str | None = None


class StopStrings:
    """Watches one output for several stop strings.

    The stop string that is complete first ends the output; of several complete at once the longest. The text ends
    where it begins, and neither it nor what follows is ever returned. How the text is cut into pieces changes nothing.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        if "" in self._stops:
            raise InvalidValue("A stop string must not be empty.", param="stop")
        self._held = ""
        self._stop: str | None = None

    def feed(self, text: str) -> StopResult:
        """What may be shown after this text. After a stop nothing more is."""
        if self._stop is not None:
            return StopResult("", self._stop)
        text = self._held + text
        match = self._first_match(text)
        if match is not None:
            self._held, self._stop = "", match
            return StopResult(text[: text.find(match)], match)
        shown = len(text) - self._num_held(text)
        self._held = text[shown:]
        return StopResult(text[:shown])

    def flush(self) -> str:
        """What was held back, at the end of the output: the beginning of a stop string that never came."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> str | None:
        found = ((text.find(stop), stop) for stop in self._stops)
        ends = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        return min(ends)[2] if ends else None

    def _num_held(self, text: str) -> int:
        """Length of the longest end of `text` that is the beginning of a stop string."""
        return max((_num_overlapping(text, stop) for stop in self._stops), default=0)


def _num_overlapping(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((length for length in range(longest, 0, -1) if text.endswith(stop[:length])), 0)
