"""Workers for tests: in the test's own event loop, where it can look inside, and as processes that can be killed."""

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from functools import partial
from pathlib import Path
from types import TracebackType

import msgspec

from consumers.worker.role import WorkerRole
from engine.thread import EngineThread
from schemas.settings import Settings
from tests.consumers.worker.pace import run_at_pace
from tests.tied import tied

# What `headrace serve worker` does, without the command line and at a pace: settings come on stdin.
_WORKER = """
import asyncio, sys, msgspec
from engine.executor import LocalExecutor
from tests.consumers.worker import pace
LocalExecutor.run = getattr(pace, sys.argv[1])
from consumers.worker.role import WorkerRole
from runtime import logging
from runtime.role import run_role
from schemas.settings import Settings

settings = msgspec.json.decode(sys.stdin.buffer.read(), type=Settings)
logging.configure(settings.logging, role="worker")

async def main():
    return await run_role(WorkerRole(settings), metrics_port=0)

sys.exit(asyncio.run(main()))
"""

_ROOT = Path(__file__).parents[3]


class WorkerProcess:
    """One worker process. Its log is shown when the test fails. `run`, a function in `pace`, runs its steps."""

    def __init__(self, settings: Settings, *, run: str = "run_at_pace") -> None:
        self._settings = settings
        self._run = run
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self.lines: list[str] = []

    async def __aenter__(self) -> "WorkerProcess":
        environment = {**os.environ, "PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1"}
        self._process = await asyncio.create_subprocess_exec(
            *tied(sys.executable, "-c", _WORKER, self._run), stdin=PIPE, stderr=PIPE, env=environment
        )
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(msgspec.json.encode(self._settings))
        await stdin.drain()
        stdin.close()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.ended()
        if error is not None:
            sys.stderr.write("".join(self.lines))

    @property
    def process(self) -> Process:
        """The child."""
        assert self._process is not None
        return self._process

    @property
    def name(self) -> str:
        """How it calls itself in its takeover marks."""
        return self._settings.worker.instance_id or f"{socket.gethostname()}-{self.process.pid}"

    @property
    def health_port(self) -> int:
        """Where it answers /healthz: its first log line says so."""
        (port,) = [line["metrics_port"] for line in map(json.loads, self.lines[:1])]
        return int(port)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Wait until it has ended; its exit code."""
        code = await self.process.wait()
        if self._reading is not None:
            await self._reading
        return code

    async def _read(self) -> None:
        stderr = self.process.stderr
        assert stderr is not None
        while line := await stderr.readline():
            self.lines.append(line.decode())


class WorkerHere:
    """A worker in the loop of the test."""

    def __init__(self, settings: Settings, *, at_pace: bool = False) -> None:
        self.role = WorkerRole(settings)
        self._at_pace = at_pace
        self.name = settings.worker.instance_id or f"{socket.gethostname()}-{os.getpid()}"
        self.running: asyncio.Task[None] | None = None

    @property
    def engine(self) -> EngineThread:
        """The engine that it runs."""
        model = self.role._model
        assert model is not None
        return model.engine

    async def __aenter__(self) -> "WorkerHere":
        await self.role.start()
        if self._at_pace:
            executor = self.engine._engine.executor
            setattr(executor, "run", partial(run_at_pace, executor))  # noqa: B010 (mypy forbids it otherwise)
        self.running = asyncio.create_task(self.role.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.role.stop()
        assert self.running is not None
        await asyncio.gather(self.running, return_exceptions=True)
