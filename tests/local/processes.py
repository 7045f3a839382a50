"""Helpers that look at real processes: who is below whom, and who is gone."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.tied import tied

GONE_WITHIN_S = 20.0
ROOT = Path(__file__).parents[2]


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for something that another process does."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - another process cannot set an event of ours
            await asyncio.sleep(0.01)


def survivors(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run after they had time to die; a zombie is dead."""
    _, alive = psutil.wait_procs(processes, timeout=GONE_WITHIN_S)
    return [process for process in alive if _is_alive(process)]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it ended while it was looked at
        return False


def python(source: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python process of our environment that can be killed; its stdout is a pipe, and it may wait on its stdin."""
    return subprocess.Popen(
        tied(sys.executable, "-c", source, *arguments),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def first_line(process: subprocess.Popen[str]) -> str:
    """The first line that it prints: by then it has done what the test waits for."""
    if process.stdout is None:
        raise RuntimeError("started without a pipe")
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    """Kill it, if it still runs, and close its pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
