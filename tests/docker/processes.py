"""A service of docker-compose.yml as a plain process: the same command and environment, other addresses."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.tied import tied

POLL_S = 0.25
STOP_GRACE_S = 40


def replaced(text: str, addresses: Mapping[str, str]) -> str:
    """The text with the names and ports of the containers' network replaced by ours."""
    for theirs, ours in addresses.items():
        text = text.replace(theirs, ours)
    return text


def container_environment(own: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What a process sees in a container: what the file says and what the image says, nothing of ours."""
    return {"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), **own}


@contextlib.contextmanager
def running(
    command: Sequence[str | Path], environment: Mapping[str, str], folder: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a command inside the block, in `folder`/home; its output goes to `folder`/log. Killed whole if need be."""
    home = folder / "home"
    home.mkdir(parents=True)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            tied(*command), env=environment, cwd=home, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        stop(process)


def stop(process: "subprocess.Popen[bytes]") -> int:
    """End a process as Docker does: SIGTERM, and SIGKILL for all of it after a while. Gives the exit code."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.wait(STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.wait()


def wait_until(is_so: Callable[[], bool], process: "subprocess.Popen[bytes]", folder: Path, timeout_s: float) -> None:
    """Ask until it is so. Raises AssertionError with the log if the process ends before, or time is up."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if process.poll() is not None or time.monotonic() > deadline:
            log = (folder / "log").read_text(errors="replace")[-4000:]
            raise AssertionError(f"exit code {process.returncode} before it was ready; its log ends with:\n{log}")
        time.sleep(POLL_S)
