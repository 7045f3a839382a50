"""A sign of life on the terminal while no token comes, and after a while what is missing that there should be one."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from schemas.errors import HeadraceError

if TYPE_CHECKING:
    from rich.status import Status

    from schemas.settings import Settings

# An answer that comes sooner needs no sign; one that comes later may not come at all.
_SHOW_AFTER_S = 1.0
_DIAGNOSE_AFTER_S = 5.0
_UPDATE_S = 1.0


class WaitingLine:
    """One faint line on stderr, which goes when `clear` is called."""

    def __init__(self, settings: "Settings") -> None:
        self._settings = settings
        self._status: Status | None = None
        self._is_cleared = False

    def clear(self) -> None:
        """Take the line away for good: something else is to be shown."""
        self._is_cleared = True
        if self._status is not None:
            self._status.stop()
            self._status = None

    async def run(self) -> None:
        """Show the line until it is cleared."""
        started_s = time.monotonic()
        await asyncio.sleep(_SHOW_AFTER_S)
        why = ""
        while not self._is_cleared:
            waited_s = time.monotonic() - started_s
            if not why and waited_s >= _DIAGNOSE_AFTER_S:
                why = await self._diagnosis()
            self._show(f"no token yet, {waited_s:.0f} s{why}")
            await asyncio.sleep(_UPDATE_S)

    def _show(self, text: str) -> None:
        if self._is_cleared:
            return
        if self._status is None:
            self._status = Console(stderr=True).status("", spinner_style="dim")
            self._status.start()
        self._status.update(Text(text, style="dim"))

    async def _diagnosis(self) -> str:
        from headrace.client.diagnosis import explain, missing_roles
        from schemas.names import Names

        topics = self._settings.topics
        names = Names(topics.namespace, topics.generation)
        try:
            missing = await missing_roles(self._settings.kafka, names, self._settings.worker.model)
        except HeadraceError as error:
            return f"; {error.message}"
        return f"; {explain(missing)}"


@asynccontextmanager
async def sign_of_life(settings: "Settings") -> AsyncIterator[WaitingLine]:
    """The line of an answer that is waited for inside the block. Where nobody looks, nothing is shown."""
    line = WaitingLine(settings)
    showing = asyncio.create_task(line.run()) if sys.stderr.isatty() and sys.stdout.isatty() else None
    try:
        yield line
    finally:
        line.clear()
        if showing is not None:
            showing.cancel()
            with suppress(asyncio.CancelledError):
                await showing
