"""Our end of a guard, without asyncio's subprocesses: their start hangs for ever if all tasks are cancelled during it.

One pipe, the guard's stdout, tells everything: its first line whether the command runs, its end that the guard ended.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.local import guard

MAX_LINE_BYTES = 64


class Guarded:
    """A running guard. Belongs to the event loop in which it is made."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        output_fd: int,
        env: Mapping[str, str] | None,
        cwd: Path | None,
        kept_fds: Sequence[int],
    ) -> None:
        """Start it; its own stderr and all output of the command go to `output_fd`."""
        self._loop = asyncio.get_running_loop()
        self._line = b""
        self._has_line = asyncio.Event()
        self._has_ended = asyncio.Event()
        self._pipe, write_end = os.pipe()
        try:
            self._popen = subprocess.Popen(
                (sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), *arguments),
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=output_fd,
                cwd=cwd,
                env=env,
                start_new_session=True,
                pass_fds=tuple(kept_fds),
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(write_end)
        self._loop.add_reader(self._pipe, self._read)

    @property
    def returncode(self) -> int | None:
        """None while it runs; else its exit code, or minus the signal that ended it."""
        return self._popen.returncode

    async def first_line(self) -> str:
        """What it says of the command's start; empty if it ended without a word."""
        await self._has_line.wait()
        return self._line.decode().strip()

    async def wait(self) -> int:
        """Wait for its end; returns the exit code."""
        await self._has_ended.wait()
        return self._popen.returncode

    def send(self, number: signal.Signals) -> None:
        """Signal it, if it still runs. Its pid is its own until `_read` has reaped it."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._popen.pid, number)

    def _read(self) -> None:
        """There is something in the pipe, or its other end is gone."""
        if data := os.read(self._pipe, MAX_LINE_BYTES):
            self._line += data
        else:
            self._loop.remove_reader(self._pipe)
            os.close(self._pipe)
            self._popen.wait()  # its descriptors are closed: it is as good as gone
            self._has_ended.set()
        if self._has_ended.is_set() or self._line.endswith(b"\n"):
            self._has_line.set()
