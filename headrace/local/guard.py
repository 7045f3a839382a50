"""The small process that stands between us and a child, so that nothing the child starts can outlive us.

It runs as a script of its own (`python -I -S guard.py PARENT_PID COMMAND...`) and imports nothing of ours. Work between
fork and exec belongs here and not in a `preexec_fn`: this process has one thread, ours have many.

- Our death: PR_SET_PDEATHSIG (prctl(2)) sends SIGUSR1. It fires when the *thread* that started the guard ends, so the
  guard acts only if its parent process really changed.
- The child's offspring: PR_SET_CHILD_SUBREAPER makes orphans, also those in sessions of their own, the guard's
  children; it kills them before it ends.
- The guard's own death (SIGKILL): the child has PR_SET_PDEATHSIG = SIGKILL.
- SIGTERM, SIGINT and SIGHUP are passed on to the child; SIGUSR2 means "kill all now".

The first line on stdout is `started PID` or `failed ERRNO`; that pipe then stays open until the guard ends. The child
does not have it: its stdout and stderr are the guard's stderr. The guard ends as the child ended: with its exit code,
or by the same signal.
"""

# Light modules only: every role and server pays for a guard, 14 ms and 4.7 MB. pathlib and typing would add a third.
import contextlib
import ctypes
import os
import resource
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

PARENT_MAY_BE_GONE = signal.SIGUSR1
KILL_NOW = signal.SIGUSR2
PASSED_ON = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
WATCHED = PASSED_ON | {PARENT_MAY_BE_GONE, KILL_NOW, signal.SIGCHLD}

EXIT_COULD_NOT_EXECUTE = 127


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def become_command(command: list[str], guard_pid: int, mask: set[int | signal.Signals]) -> None:
    """In the forked child: tie its life to the guard's, give it its own process group, execute. Raises OSError."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != guard_pid:
        os._exit(EXIT_COULD_NOT_EXECUTE)
    os.setpgid(0, 0)
    os.dup2(2, 1)
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.execvp(command[0], command)  # noqa: S606 - a list, no shell, is the point


def fork_command(command: list[str], mask: set[int | signal.Signals]) -> int:
    """Start the command and return its pid. Raises OSError if it cannot be executed (pipe closed by exec = it was)."""
    guard_pid = os.getpid()
    error_read, error_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            become_command(command, guard_pid, mask)
        except OSError as error:
            os.write(error_write, str(error.errno).encode())
        finally:
            os._exit(EXIT_COULD_NOT_EXECUTE)
    os.close(error_write)
    error_number = os.read(error_read, 16)
    os.close(error_read)
    if error_number:
        os.waitpid(child, 0)
        raise OSError(int(error_number), os.strerror(int(error_number)))
    return child


def children() -> list[int]:
    """Pids of the direct children, orphans adopted from the command included."""
    own_pid = os.getpid()
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    return [pid for pid in pids if parent_of(pid) == own_pid]


def parent_of(pid: int) -> int | None:
    """Parent of a process by proc(5), None if it has ended."""
    try:
        stat = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        # "PID (name) state PPID ...": the name may hold spaces and parentheses.
        return int(os.read(stat, 4096).rpartition(b")")[2].split()[1])
    except OSError:
        return None
    finally:
        os.close(stat)


def kill_all() -> None:
    """SIGKILL every descendant and reap it: each death hands the guard the next generation."""
    while pids := children():
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def reap(child: int) -> int | None:
    """Collect whatever ended; the wait status of the command if it is among them."""
    status_of_child = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                status_of_child = status
    return status_of_child


def watch(child: int, parent_pid: int) -> int:
    """Until the command has ended: pass signals on, obey a kill, notice the parent's death. Returns its wait status."""
    while True:
        number = signal.sigwait(WATCHED)
        if (status := reap(child)) is not None:
            return status
        if number in PASSED_ON:
            os.kill(child, number)
        elif number == KILL_NOW or os.getppid() != parent_pid:
            kill_all()
            return int(signal.SIGKILL)


def end_like(status: int) -> None:
    """End with the exit code, or by the signal, that a wait status tells of."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a second core dump would only hide the child's
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def main(arguments: list[str]) -> None:
    """Guard one command for its whole life."""
    parent_pid, command = int(arguments[0]), arguments[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, PARENT_MAY_BE_GONE)
    if os.getppid() != parent_pid:  # it died before the line above could take effect
        os._exit(EXIT_COULD_NOT_EXECUTE)
    try:
        child = fork_command(command, mask)
    except OSError as error:
        os.write(1, f"failed {error.errno}\n".encode())
        os._exit(EXIT_COULD_NOT_EXECUTE)
    os.write(1, f"started {child}\n".encode())
    status = watch(child, parent_pid)
    kill_all()
    end_like(status)


if __name__ == "__main__":
    main(sys.argv[1:])
