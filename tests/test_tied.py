"""What a test starts dies with pytest, also when pytest has no moment left to end it."""

import ast
import os
import signal
from pathlib import Path

import psutil

from tests.local.processes import end, first_line, python, survivors

TESTS = Path(__file__).parent

# Starts one process in each way that tests do, prints their pids, and never ends them.
PARENT = """
import asyncio, subprocess, sys, tempfile
from pathlib import Path
from tests.docker.processes import running
from tests.tied import tied

async def main():
    sleeping = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(1000)"]
    child = await asyncio.create_subprocess_exec(*tied(*sleeping), stdout=subprocess.PIPE)
    await child.stdout.readline()
    popen = subprocess.Popen(tied(*sleeping), stdout=subprocess.PIPE)
    popen.stdout.readline()
    with running(sleeping, {}, Path(sys.argv[1]) / "service") as service:
        while "up" not in (Path(sys.argv[1]) / "service" / "log").read_text():
            await asyncio.sleep(0.01)
        print(child.pid, popen.pid, service.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""

# Calls that start a process which may outlive the call.
STARTERS = {"create_subprocess_exec", "Popen"}


def test_no_process_of_a_test_outlives_a_pytest_that_is_killed(tmp_path: Path) -> None:
    parent = python(PARENT, str(tmp_path))
    try:
        children = [psutil.Process(int(pid)) for pid in first_line(parent).split()]
        os.kill(parent.pid, signal.SIGKILL)
        assert len(children) == 3
        assert survivors(children) == []
    finally:
        end(parent)


def test_a_tied_process_has_the_pid_the_pipes_and_the_exit_code_of_its_command(tmp_path: Path) -> None:
    process = python("import os, sys; print(os.getpid(), flush=True); sys.exit(int(sys.stdin.read()))")
    try:
        assert int(first_line(process)) == process.pid
        process.communicate("7", timeout=30)
        assert process.returncode == 7
    finally:
        end(process)


def test_every_process_that_a_test_starts_is_tied() -> None:
    loose = [
        f"{file.relative_to(TESTS)}:{call.lineno}"
        for file in TESTS.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and _starts(call) and not _is_tied(call)
    ]
    assert not loose, "wrap the command in `tied(...)`"


def _starts(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in STARTERS


def _is_tied(call: ast.Call) -> bool:
    command = call.args[0] if call.args else None
    if isinstance(command, ast.Starred):
        command = command.value
    return isinstance(command, ast.Call) and isinstance(command.func, ast.Name) and command.func.id == "tied"
