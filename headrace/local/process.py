"""A child process that cannot outlive us: its own session, its output in a log file, a guard that ends its offspring.

The guard (guard.py) costs 14 ms at the start and 4.7 MB for as long as the child lives.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.local import guard
from headrace.local.files import make_folder
from headrace.local.guarded import Guarded
from schemas.errors import LocalStackError

# A log is continued from start to start; beyond this it is moved to NAME.1 first.
MAX_LOG_BYTES = 10 * 1024 * 1024

# The guard needs milliseconds to kill what is below it; only a stopped or stuck one is killed itself.
GUARD_KILLS_WITHIN_S = 5.0
TAIL_BYTES = 16 * 1024


@dataclass(frozen=True)
class Command:
    """What to run. `env` None is our own environment; `kept_fds` stay open in the child."""

    name: str
    arguments: Sequence[str]
    log_path: Path
    env: Mapping[str, str] | None = None
    cwd: Path | None = None
    kept_fds: Sequence[int] = ()


class ManagedProcess:
    """A running, or ended, command. Belongs to the event loop that started it; every method is safe after its end."""

    def __init__(self, command: Command, guarded: Guarded, pid: int, log_start: int) -> None:
        self.command = command
        self.pid = pid
        self._guarded = guarded
        self._log_start = log_start

    @classmethod
    async def start(cls, command: Command) -> "ManagedProcess":
        """Start it; returns when it is executing. Raises LocalStackError if it cannot be executed."""
        log_fd = _open_log(command.log_path)
        try:
            log_start = os.fstat(log_fd).st_size
            guarded = Guarded(
                command.arguments, output_fd=log_fd, env=command.env, cwd=command.cwd, kept_fds=command.kept_fds
            )
        finally:
            os.close(log_fd)
        return cls(command, guarded, await _read_pid(command, guarded), log_start)

    @property
    def returncode(self) -> int | None:
        """None while it runs; else its exit code, or minus the signal that ended it."""
        return self._guarded.returncode

    async def wait(self) -> int:
        """Wait for its end, and that of all it started; returns the exit code."""
        returncode = await self._guarded.wait()
        if returncode == -signal.SIGKILL:
            # If it was the guard that somebody killed, the command died with it, but not what the command had started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return returncode

    async def stop(self, grace_s: float = 10.0) -> int:
        """SIGTERM, then after `grace_s` SIGKILL to it and all that it started; returns the exit code."""
        self._guarded.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                return await self.wait()
        except TimeoutError:
            return await self.kill()

    async def kill(self) -> int:
        """SIGKILL at once, to it and all that it started; returns the exit code."""
        self._guarded.send(guard.KILL_NOW)
        try:
            async with asyncio.timeout(GUARD_KILLS_WITHIN_S):
                return await self.wait()
        except TimeoutError:
            self._guarded.send(signal.SIGKILL)
            return await self.wait()

    def log_tail(self, max_lines: int = 20) -> str:
        """The last lines that it wrote since this start, for an error message."""
        with self.command.log_path.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - TAIL_BYTES))
            lines = log.read().decode(errors="replace").splitlines()
        return "\n".join(lines[-max_lines:])


def _open_log(path: Path) -> int:
    make_folder(path.parent)
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


async def _read_pid(command: Command, guarded: Guarded) -> int:
    """The command's pid, as the guard tells it; whatever goes wrong, no guard is left."""
    try:
        verdict, _, number = (await guarded.first_line()).partition(" ")
        if verdict == "started":
            return int(number)
    except BaseException:
        guarded.send(signal.SIGKILL)
        await guarded.wait()
        raise
    await guarded.wait()
    reason = os.strerror(int(number)) if verdict == "failed" else f"its guard failed, see {command.log_path}"
    raise LocalStackError(f"cannot start {command.name}: {command.arguments[0]}: {reason}")
