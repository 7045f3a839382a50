"""One of our own processes under supervision: started, watched until ready, restarted when it dies, stopped once."""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import NoReturn

from headrace.local.process import Command, ManagedProcess
from headrace.local.readiness import POLL_S, http_ok
from schemas.errors import LocalStackError

# Beyond any sensible longest delay, and within what a float holds.
MAX_DOUBLINGS = 64


class RoleState(StrEnum):
    """Where a role is. FAILED and STOPPED are final."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True)
class Role:
    """What to run. `env` is added to our environment; without `ready_port` a role is ready as soon as it runs."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    ready_port: int | None = None
    stop_grace_s: float = 35.0


@dataclass(frozen=True)
class RestartPolicy:
    """How often a dead role is started again.

    The delay doubles from death to death and starts over after a life of `healthy_after_s`; `max_quick_deaths` in a row
    without such a life are a fault that no restart cures.
    """

    first_delay_s: float = 0.1
    max_delay_s: float = 5.0
    healthy_after_s: float = 30.0
    max_quick_deaths: int = 5

    def delay_s(self, num_quick_deaths: int) -> float:
        """How long to wait after the n-th quick death in a row, n from 0 (it had lived long) up."""
        num_doublings = min(max(0, num_quick_deaths - 1), MAX_DOUBLINGS)
        return min(self.max_delay_s, self.first_delay_s * 2.0**num_doublings)


@dataclass(frozen=True)
class RoleChange:
    """A role's new state; `pid` while it runs, `detail` for people."""

    role: str
    state: RoleState
    pid: int | None = None
    detail: str = ""


OnChange = Callable[[RoleChange], None]


class SupervisedRole:
    """Keeps one role running. Only the task in `run` touches the process, so nothing can restart what is being stopped.

    `hold`, `stop` and `kill` only set flags, in this order of strength, and may be called at any time.
    """

    def __init__(self, role: Role, log_dir: Path, policy: RestartPolicy, on_change: OnChange) -> None:
        self.role = role
        self.state = RoleState.STARTING
        self.ready = asyncio.Event()
        self._log_path = log_dir / f"{role.name}.log"
        self._policy = policy
        self._on_change = on_change
        self._hold = asyncio.Event()
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()

    def hold(self) -> None:
        """Do not start it again if it dies from now on."""
        self._hold.set()

    def stop(self) -> None:
        """Stop it in good order."""
        self._hold.set()
        self._stop.set()

    def kill(self) -> None:
        """End it at once."""
        self.stop()
        self._kill.set()

    async def run(self) -> None:
        """Keep it running until it is stopped. Raises LocalStackError if it cannot be started or keeps dying."""
        num_quick_deaths = 0
        while not self._hold.is_set():
            life = await self._live_once()
            if self._hold.is_set():
                break
            num_quick_deaths = 0 if life.lived_s >= self._policy.healthy_after_s else num_quick_deaths + 1
            if num_quick_deaths >= self._policy.max_quick_deaths:
                self._give_up(life, num_quick_deaths)
            await self._pause(life, self._policy.delay_s(num_quick_deaths))
        self._enter(RoleState.STOPPED)

    async def _live_once(self) -> "Life":
        """From start to end, however it ends; nothing of it is left then."""
        process = await self._start()
        started_s = time.monotonic()
        try:
            await self._until_over(process)
            if process.returncode is None:
                await self._end(process)
        finally:
            self.ready.clear()
            returncode = await process.kill()
        return Life(time.monotonic() - started_s, returncode, process.log_tail())

    async def _start(self) -> ManagedProcess:
        env = {**os.environ, **self.role.env}
        try:
            process = await ManagedProcess.start(Command(self.role.name, self.role.command, self._log_path, env=env))
        except LocalStackError as error:
            self._enter(RoleState.FAILED, detail=error.message)
            raise
        self._enter(RoleState.STARTING, process.pid)
        return process

    async def _until_over(self, process: ManagedProcess) -> None:
        """Return when it has ended or is to be stopped; say meanwhile when it is ready."""
        await first_of(process.wait, self._stop.wait, self._until_answers)
        if process.returncode is None and not self._stop.is_set():
            self.ready.set()
            self._enter(RoleState.READY, process.pid)
            await first_of(process.wait, self._stop.wait)

    async def _until_answers(self) -> None:
        port = self.role.ready_port
        while port is not None and not await http_ok(port, "/readyz"):  # noqa: ASYNC110 - it cannot set an event of ours
            await asyncio.sleep(POLL_S)

    async def _end(self, process: ManagedProcess) -> None:
        self._enter(RoleState.STOPPING, process.pid)
        await first_of(partial(process.stop, self.role.stop_grace_s), self._kill.wait)

    def _give_up(self, life: "Life", num_quick_deaths: int) -> NoReturn:
        what = (
            f"{self.role.name} ended {num_quick_deaths} times within {self._policy.healthy_after_s:g} s of its start, "
            f"the last time with code {life.returncode}; the end of {self._log_path}:\n{life.log_tail}"
        )
        self._enter(RoleState.FAILED, detail=what)
        raise LocalStackError(what)

    async def _pause(self, life: "Life", delay_s: float) -> None:
        detail = f"ended with code {life.returncode} after {life.lived_s:.1f} s, starts again in {delay_s:.1f} s"
        self._enter(RoleState.RESTARTING, detail=detail)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._hold.wait()

    def _enter(self, state: RoleState, pid: int | None = None, detail: str = "") -> None:
        self.state = state
        self._on_change(RoleChange(self.role.name, state, pid, detail))


@dataclass(frozen=True)
class Life:
    """How one run of a role ended."""

    lived_s: float
    returncode: int
    log_tail: str


async def first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    """Run all until one is done, then cancel the others. Raises what a finished one raised."""
    tasks = [asyncio.ensure_future(wait()) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
