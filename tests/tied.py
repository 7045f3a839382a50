"""Ties a process that a test starts to the test's own life: pytest killed by SIGKILL must leave nothing running.

Run as a script it asks the kernel for that (PR_SET_PDEATHSIG, prctl(2)) and becomes the command: same pid, same pipes,
same signals. The death that counts is that of the thread which started it: tests start their processes in the main one.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from os import PathLike

PR_SET_PDEATHSIG = 1


def tied(*command: "str | PathLike[str]") -> Sequence[str]:
    """The command line that starts `command` so that it is killed when this process dies."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *(os.fspath(part) for part in command)]


def main(parent_pid: int, command: list[str]) -> None:
    """Tie this process, and become the command."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent_pid:  # it died before the line above could take effect
        os.kill(os.getpid(), signal.SIGKILL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
