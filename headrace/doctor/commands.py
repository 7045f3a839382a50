"""Other programs asked for their version: never through a shell, and never left running."""

import asyncio
import os
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from contextlib import suppress
from typing import NamedTuple

# Maven colours even what it was told not to (ECMA-48, control sequences).
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


class Answer(NamedTuple):
    """How a program ended and what it said, on stdout and stderr together."""

    returncode: int
    text: str

    @property
    def first_line(self) -> str:
        """Its first line that is not empty, without colours."""
        return next((line.strip() for line in _COLOURS.sub("", self.text).splitlines() if line.strip()), "")


async def ask(*command: str) -> Answer:
    """Run a program to its end; if the caller is cancelled, it and what it started are killed.

    Raises:
        OSError: it cannot be started.
    """
    # A session of its own, so that a script dies with the program that it runs.
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, start_new_session=True)
    )
    try:
        # Shielded: cancelled half-way, asyncio ends the program alone, and what that has started lives on.
        process = await asyncio.shield(starting)
        out, _ = await process.communicate()
    except BaseException:
        with suppress(OSError):  # it was never started
            await _kill(await starting)
        raise
    return Answer(process.returncode or 0, out.decode(errors="replace"))


async def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
