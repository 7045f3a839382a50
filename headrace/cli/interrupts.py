"""Ctrl-C for commands that have something to put away or to stop, and what happens when it is pressed again."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from headrace.cli.exits import EXIT_INTERRUPTED

_ENDS = (signal.SIGTERM, signal.SIGHUP)
_SIGNALS = (signal.SIGINT, *_ENDS)


def run(work: Coroutine[Any, Any, int], *, on_first: Callable[[], None]) -> int:
    """Run `work` to its exit code. The first signal cancels it and calls `on_first`; it puts away what it has.

    A second signal ends the process on the spot. What it had started is ended by the guards then.
    """
    return asyncio.run(_run(work, on_first))


@contextmanager
def on_ctrl_c(act: Callable[[], None]) -> Iterator[None]:
    """Inside the block Ctrl-C calls `act`, as often as it is pressed, and does nothing else."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


@contextmanager
def end_in_order() -> Iterator[None]:
    """Inside the block, whoever ends the process or closes its terminal cancels the task that runs the block."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is None:
        raise RuntimeError("a task runs this block")
    for number in _ENDS:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in _ENDS:
            loop.remove_signal_handler(number)


def _show_cursor() -> None:
    """A live table hides the terminal's cursor, and has no time left to bring it back."""
    for stream in (sys.stdout, sys.stderr):
        if stream.isatty():
            stream.write("\x1b[?25h\n")
            stream.flush()
            return


async def _run(work: Coroutine[Any, Any, int], on_first: Callable[[], None]) -> int:
    task = asyncio.create_task(work)
    was_signalled = False

    def on_signal() -> None:
        nonlocal was_signalled
        if was_signalled:
            _show_cursor()
            os._exit(EXIT_INTERRUPTED)
        was_signalled = True
        task.cancel()
        on_first()

    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    try:
        return await task
    except asyncio.CancelledError:
        return EXIT_INTERRUPTED
