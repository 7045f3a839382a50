"""One answer of a conversation, while the user may type: a key holds the answer back until the line is entered."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.cli.interrupts import on_ctrl_c
from headrace.cli.keys import key_pressed, silent_keys
from headrace.cli.speaker import Speaker, note
from headrace.cli.stopping import Stopper
from headrace.cli.waiting import WaitingLine, sign_of_life

if TYPE_CHECKING:
    from headrace.client import TokenStream
    from schemas.results import Result
    from schemas.settings import Settings

STOP = "/stop"

# Asks for a line. Raises KeyboardInterrupt or EOFError by the key.
Prompt = Callable[[], Awaitable[str]]


class Answering:
    """Shows one answer. Ctrl-C and /stop end it; any other line that is typed meanwhile waits in `typed`."""

    def __init__(self, settings: "Settings", answer: "TokenStream", stopper: Stopper, prompt: Prompt) -> None:
        self.typed: list[str] = []
        self.wants_to_leave = False
        self._settings = settings
        self._answer = answer
        self._stopper = stopper
        self._prompt = prompt
        self._speaker = Speaker(sys.stdout)
        # Set while the user is not in the middle of a line.
        self._is_quiet = asyncio.Event()
        self._is_quiet.set()
        self._waiting: WaitingLine | None = None

    async def run(self) -> "Result | None":
        """Show it to its end; its result, None where it was left before. Raises what iterating a stream raises."""
        with silent_keys(), on_ctrl_c(self._stopper.stop):
            listening = asyncio.create_task(self._listen())
            try:
                await self._stopper.until_end(asyncio.create_task(self._show()))
            except asyncio.CancelledError:
                listening.cancel()
                raise
            finally:
                # Nobody is interrupted in the middle of a line, also not by the end of the answer.
                await self._is_quiet.wait()
                listening.cancel()
                with suppress(asyncio.CancelledError):
                    await listening
                self._speaker.end()
        if self._stopper.was_asked:
            self._stopper.say()
        else:
            note(self._speaker.figures)
        return self._answer.result

    async def _show(self) -> None:
        async with sign_of_life(self._settings) as self._waiting:
            async for delta in self._answer:
                self._waiting.clear()
                self._speaker.say(delta)

    async def _listen(self) -> None:
        while not self.wants_to_leave:
            await key_pressed()
            self._is_quiet.clear()
            if self._waiting is not None:
                self._waiting.clear()
            self._speaker.hold()
            try:
                self._take((await self._prompt()).strip())
            except KeyboardInterrupt:
                self._stopper.stop()
            except EOFError:
                self.wants_to_leave = True
                self._stopper.stop()
            finally:
                self._speaker.release()
                self._is_quiet.set()

    def _take(self, line: str) -> None:
        if line == STOP:
            self._stopper.stop()
        elif line:
            self.typed.append(line)
