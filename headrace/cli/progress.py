"""How a start is shown: a live table on a terminal, plain lines elsewhere."""

import time
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

READY = "ready"
FAILED = "failed"
RESTARTING = "restarting"

# The components in the order in which they are shown.
_TITLES = {
    "kafka": "Kafka",
    "s3": "S3",
    "topics": "topics and bucket",
    "gate": "gate",
    "pipeline": "pipeline",
    "worker": "worker",
}


class StartProgress:
    """The components of a start, each with its state and seconds. Used as a context manager around the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: dict[str, _Row] = {}
        self._live = Live(get_renderable=self._table, console=console, refresh_per_second=12)
        self._is_open = False

    def __enter__(self) -> "StartProgress":
        self._is_open = True
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        for row in self._rows.values():
            row.freeze()
        if self._console.is_terminal:
            self._live.stop()

    def update(self, component: str, state: str, seconds: float) -> None:
        """Take a new state. After the start only bad news is shown: a role that dies and is started again."""
        row = self._rows.setdefault(component, _Row(component))
        row.enter(state, seconds)
        if self._is_open and not self._console.is_terminal:
            self._console.print(Text(row.line), soft_wrap=True)
        elif not self._is_open and state.startswith((FAILED, RESTARTING)):
            self._console.print(Text(row.line, style="yellow"), soft_wrap=True)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for _ in range(3):
            table.add_column()
        table.add_column(no_wrap=True, overflow="ellipsis")
        order = list(_TITLES)
        for row in sorted(self._rows.values(), key=lambda row: order.index(row.component)):
            table.add_row(*row.cells())
        return table


class _Row:
    """One component."""

    def __init__(self, component: str) -> None:
        self.component = component
        self._title = _TITLES[component]
        self._state = ""
        self._seconds = 0.0
        self._updated_s = time.monotonic()
        self._spinner = Spinner("dots", style="cyan")
        self._is_frozen = False

    @property
    def line(self) -> str:
        """As one line of text."""
        return f"{self._title}: {self._state}" + (f" ({self._seconds:.1f} s)" if self._state == READY else "")

    def enter(self, state: str, seconds: float) -> None:
        """Take a new state, `seconds` after the start of the component. Of a longer text the first line is shown."""
        self._state, self._seconds, self._updated_s = state.partition("\n")[0], seconds, time.monotonic()

    def freeze(self) -> None:
        """Let no time pass any more."""
        self._seconds = self._now_s
        self._is_frozen = True

    def cells(self) -> tuple[Any, ...]:
        """Mark, title, seconds, state."""
        if self._state == READY:
            return Text("✓", style="green"), self._title, f"{self._seconds:5.1f} s", ""
        is_failed = self._state.startswith(FAILED)
        mark = (
            Text("✗", style="bold red") if is_failed else Text("·", style="dim") if self._is_frozen else self._spinner
        )
        style = "red" if is_failed else "dim"
        return mark, self._title, Text(f"{self._now_s:5.1f} s", style="dim"), Text(self._state, style=style)

    @property
    def _now_s(self) -> float:
        is_over = self._is_frozen or self._state == READY
        return self._seconds if is_over else self._seconds + time.monotonic() - self._updated_s
