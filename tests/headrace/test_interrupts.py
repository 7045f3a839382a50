"""Ctrl-C in commands that keep something running, also when nobody reads any more what they say."""

import asyncio
import os
import signal
import subprocess
import sys

from headrace.cli import interrupts
from headrace.cli.exits import EXIT_INTERRUPTED
from tests.tied import tied

SCRIPT = """
import asyncio, os, signal
from headrace.cli import interrupts
from headrace.cli.lasting_console import LastingConsole

console = LastingConsole(highlight=False)

async def work():
    os.write(2, b"ready\\n")
    try:
        await asyncio.Event().wait()
    finally:
        console.print("putting away")
        os.write(2, b"put away\\n")

raise SystemExit(interrupts.run(work(), on_first=lambda: console.print("stopping")))
"""


def test_the_work_is_cancelled_before_anything_is_said_of_it() -> None:
    told = []

    async def work() -> int:
        task = asyncio.current_task()
        assert task is not None
        worker.append(task)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        return 0

    worker: list[asyncio.Task[int]] = []
    code = interrupts.run(work(), on_first=lambda: told.append(worker[0].cancelling()))
    assert (code, told) == (EXIT_INTERRUPTED, [1])


def test_a_reader_that_has_gone_does_not_break_the_orderly_stop() -> None:
    """As in `headrace up 2>&1 | tee log`: Ctrl-C ends `tee` as well, and first."""
    with subprocess.Popen(
        tied(sys.executable, "-c", SCRIPT), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == b"ready\n"
        process.stdout.close()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b"put away\n"
        assert process.wait(timeout=30) == EXIT_INTERRUPTED
