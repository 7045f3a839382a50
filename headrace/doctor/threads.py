"""Threads that nobody waits for: a name look-up or a dead network disk may hang, the command may not."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonExecutor(ThreadPoolExecutor):
    """A daemon thread for each call.

    asyncio waits at its end for the threads of its default executor, where name look-ups run, and so does Python at
    its exit. Neither waits for these.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Start the call at once."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 (it is raised where the future is awaited)
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=run, name="headrace-doctor", daemon=True).start()
        return future


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop that ends even while a thread of it hangs."""
    loop = asyncio.new_event_loop()
    loop.set_default_executor(DaemonExecutor())
    return loop
