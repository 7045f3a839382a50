"""The local stack for callers without an event loop of their own: test suites and notebooks."""

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from headrace.local.endpoints import Endpoints
from headrace.local.settings import LocalStackSettings, OnProgress, ignore_progress
from headrace.local.stack import LocalStack
from schemas.settings import StorageSettings

T = TypeVar("T")


class BackgroundStack:
    """A LocalStack in a thread and an event loop of its own, used as `with BackgroundStack(settings) as stack`.

    asyncio's child processes belong to the loop that started them, and a test's loop ends with the test: a stack that
    serves many tests needs a loop that outlives them. Its methods may be called from any thread.
    """

    def __init__(self, settings: LocalStackSettings, on_progress: OnProgress = ignore_progress) -> None:
        self.stack = LocalStack(settings, on_progress)
        self._loop = asyncio.new_event_loop()
        # A daemon: it must not hold up the end of a process that forgot to stop it; the guards end Kafka and S3 then.
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-stack", daemon=True)

    def __enter__(self) -> "BackgroundStack":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoints(self) -> Endpoints:
        """How to reach both. Raises LocalStackError if the stack was not started."""
        return self.stack.endpoints

    @property
    def bootstrap_servers(self) -> str:
        """Address of the broker, HOST:PORT."""
        return self.endpoints.bootstrap_servers

    @property
    def s3(self) -> StorageSettings:
        """Endpoint, keys and bucket of the object store, as our clients take them."""
        return self.endpoints.storage

    def start(self) -> Endpoints:
        """Start Kafka and S3 and wait until both answer. It can be used once. Raises LocalStackError."""
        self._thread.start()
        try:
            return self.run(self.stack.start())
        except BaseException:
            self._end_loop()
            raise

    def stop(self) -> None:
        """Stop both, and the thread; safe when not started."""
        if not self._thread.is_alive():
            return
        try:
            self.run(self.stack.stop())
        finally:
            self._end_loop()

    def run(self, action: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the stack on its loop, as in `run(stack.stack.kafka.start())`, and return its result."""
        future = asyncio.run_coroutine_threadsafe(action, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _end_loop(self) -> None:
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


async def _cancel_others() -> None:
    """Cancel what an interrupted caller left behind, and wait until it has cleaned up."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
