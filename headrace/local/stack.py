"""Kafka and S3 together: started side by side, published to other commands, stopped as one."""

import asyncio
import shutil
import time
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType

from headrace.local.endpoints import Endpoints, read_endpoints, remove_endpoints, write_endpoints
from headrace.local.identity import ProcessIdentity
from headrace.local.kafka import LocalKafka
from headrace.local.lock import LOCK_NAME, claim_folder
from headrace.local.s3 import LocalS3
from headrace.local.settings import LocalStackSettings, OnProgress, Report, ignore_progress
from schemas.errors import LocalStackError

__all__ = ["Endpoints", "LocalStack", "LocalStackSettings", "read_endpoints", "reset"]


class LocalStack:
    """A broker and an object store in one data folder, used as `async with LocalStack(settings) as stack`.

    `on_progress(component, state, seconds)` is called from the event loop at each change of state, with "kafka" or "s3"
    and the seconds since the start, or the stop, was asked for.
    """

    def __init__(self, settings: LocalStackSettings, on_progress: OnProgress = ignore_progress) -> None:
        self.settings = settings
        self._on_progress = on_progress
        self._since = time.monotonic()
        self.kafka = LocalKafka(settings.kafka, self._reporter("kafka"))
        self.s3 = LocalS3(settings.s3, self._reporter("s3"))
        self._resources = AsyncExitStack()
        self._endpoints: Endpoints | None = None

    async def __aenter__(self) -> "LocalStack":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def endpoints(self) -> Endpoints:
        """How to reach both. Raises LocalStackError if the stack was not started."""
        if self._endpoints is None:
            raise LocalStackError("the local stack is not started: await start()")
        return self._endpoints

    async def start(self) -> Endpoints:
        """Start both and publish `endpoints.json`.

        Raises LocalStackError that names all that is missing; then nothing is left running.
        """
        if self._endpoints is not None:
            return self._endpoints
        self._since = time.monotonic()
        async with AsyncExitStack() as resources:
            lock = await claim_folder(self.settings.data_dir)
            resources.callback(lock.release)
            resources.push_async_callback(self._stop_both)
            await self._start_both()
            endpoints = self._describe()
            write_endpoints(self.settings.data_dir, endpoints)
            resources.callback(remove_endpoints, self.settings.data_dir)
            self._endpoints, self._resources = endpoints, resources.pop_all()
        return endpoints

    async def addresses(self) -> Endpoints:
        """How to reach both, as soon as that is known: before they answer. To be awaited while `start` runs."""
        await self.kafka.addressed.wait()
        await self.s3.addressed.wait()
        return self._describe()

    async def stop(self) -> None:
        """Take `endpoints.json` back and stop both; safe when not started."""
        self._since = time.monotonic()
        self._endpoints = None
        await self._resources.aclose()

    async def watch(self) -> None:
        """Raise LocalStackError when a component ends by itself; return when the stack is stopped."""
        processes = {asyncio.ensure_future(part.wait()): part.process for part in (self.kafka, self.s3)}
        try:
            ended, _ = await asyncio.wait(processes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in processes:
                wait.cancel()
        if self._endpoints is not None:
            process = processes[ended.pop()]
            raise LocalStackError(f"{process.command.name} ended with code {process.returncode}:\n{process.log_tail()}")

    async def _start_both(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.kafka.start())
                group.create_task(self.s3.start())
        except* LocalStackError as failures:
            messages = [str(failure) for failure in failures.exceptions]
        else:
            return
        raise LocalStackError("\n".join(messages))

    async def _stop_both(self) -> None:
        results = await asyncio.gather(self.kafka.stop(), self.s3.stop(), return_exceptions=True)
        for failure in results:
            if failure is not None:
                raise failure

    def _describe(self) -> Endpoints:
        owner = ProcessIdentity.current()
        storage = self.s3.storage
        return Endpoints(
            bootstrap_servers=self.kafka.bootstrap_servers,
            s3_endpoint=storage.endpoint or "",
            access_key=storage.access_key or "",
            secret_key=storage.secret_key or "",
            bucket=storage.bucket,
            pid=owner.pid,
            started_ticks=owner.started_ticks,
        )

    def _reporter(self, component: str) -> Report:
        last = ""

        def report(state: str) -> None:
            nonlocal last
            if state != last:
                last = state
                self._on_progress(component, state, time.monotonic() - self._since)

        return report


async def reset(data_dir: Path) -> None:
    """Remove all that a data folder holds; safe if it does not exist.

    Raises LocalStackError if it is in use, or if headrace did not make it.
    """
    async with AsyncExitStack() as locks:
        for folder in _folders_in_use(data_dir):
            locks.callback((await claim_folder(folder)).release)
        _empty(data_dir)


def _folders_in_use(data_dir: Path) -> list[Path]:
    """The folders whose locks say whether something runs in a data folder."""
    if not data_dir.exists():
        return []
    if any(data_dir.iterdir()) and not (data_dir / LOCK_NAME).exists():
        raise LocalStackError(f"{data_dir} was not made by headrace: nothing is removed; choose its data folder")
    return [data_dir, *(part for part in (data_dir / "kafka", data_dir / "s3") if part.exists())]


def _empty(data_dir: Path) -> None:
    """Remove everything but the lock, which is held."""
    for entry in data_dir.iterdir() if data_dir.exists() else ():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK_NAME:
            entry.unlink()
