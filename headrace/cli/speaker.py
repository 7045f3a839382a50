"""How an answer is shown while it streams, and the two figures at its end."""

import sys
import time
import unicodedata
from typing import TextIO

from headrace.client.delta import Delta
from schemas.results import Result

_ALLOWED_CONTROLS = frozenset("\n\t")


class Speaker:
    """Writes one stream to `out`: as it comes, or whole at its end. Further choices follow the first one."""

    def __init__(self, out: TextIO, *, is_live: bool = True) -> None:
        self._out = out
        self._is_live = is_live
        self._texts: dict[int, list[str]] = {}
        # What came while the user was typing.
        self._held: list[str] | None = None
        # A model's text may hold escape sequences: they must not reach a terminal.
        self._is_terminal = out.isatty()
        self._started_s = time.monotonic()
        self._first_s: float | None = None
        self._last_s: float | None = None
        self._num_tokens = 0
        self._num_first_tokens = 0

    def say(self, delta: Delta) -> None:
        """Take one delta."""
        self._count(delta)
        self._texts.setdefault(delta.choice, []).append(delta.text)
        if self._is_live and delta.choice == 0:
            self._show(delta.text)

    def hold(self) -> None:
        """Leave the line to the user, and show nothing until `release`."""
        if self._held is None:
            self._held = []
            self._out.write("\n")
            self._out.flush()

    def release(self) -> None:
        """Show what came meanwhile."""
        held, self._held = self._held or [], None
        self._show("".join(held))

    def end(self) -> None:
        """Show what was not shown yet, and end the line. Silent if nothing was said."""
        self.release()
        if not any(text for texts in self._texts.values() for text in texts):
            return
        for choice, texts in sorted(self._texts.items()):
            if choice > 0:
                self._out.write(f"[choice {choice}]\n")
            if choice > 0 or not self._is_live:
                self._out.write(self._safe("".join(texts)))
            self._out.write("\n")
        self._out.flush()

    @property
    def num_tokens(self) -> int:
        """The tokens of all choices that were said."""
        return self._num_tokens

    @property
    def figures(self) -> str:
        """Time to the first token and tokens a second behind it, as this client saw them."""
        if self._first_s is None or self._last_s is None:
            return "no tokens"
        parts = [f"first token after {self._first_s - self._started_s:.2f} s", f"{self._num_tokens} tokens"]
        behind_first, seconds = self._num_tokens - self._num_first_tokens, self._last_s - self._first_s
        if behind_first > 0 and seconds > 0:
            parts.append(f"{behind_first / seconds:.1f} tokens/s")
        return " · ".join(parts)

    def _show(self, text: str) -> None:
        if self._held is not None:
            self._held.append(text)
            return
        self._out.write(self._safe(text))
        self._out.flush()

    def _count(self, delta: Delta) -> None:
        if not delta.token_ids:
            return
        self._last_s = time.monotonic()
        self._num_tokens += len(delta.token_ids)
        if self._first_s is None:
            self._first_s, self._num_first_tokens = self._last_s, len(delta.token_ids)

    def _safe(self, text: str) -> str:
        return printable(text) if self._is_terminal else text


def printable(text: str) -> str:
    """The text without control characters, line ends and tabs excepted."""
    return "".join(
        character for character in text if character in _ALLOWED_CONTROLS or unicodedata.category(character) != "Cc"
    )


def note(text: str) -> None:
    """Say something beside the answer: on stderr, faint on a terminal."""
    from rich.console import Console

    Console(stderr=True).print(text, style="dim", highlight=False, markup=False, soft_wrap=True)


def print_json_line(record: Delta | Result) -> None:
    """One record as one line of JSON."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(record).decode() + "\n")
    sys.stdout.flush()
