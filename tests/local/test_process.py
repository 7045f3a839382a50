"""A managed process ends as told, tells how it ended, and never outlives us; nor does anything that it started."""

import asyncio
import os
import signal
import threading
from pathlib import Path

import psutil
import pytest

from headrace.local.lock import OwnedLock
from headrace.local.process import MAX_LOG_BYTES, Command, ManagedProcess
from schemas.errors import LocalStackError
from tests.local.conftest import NewChildren
from tests.local.processes import end, first_line, python, survivors, until

# A child, one in its own session, and one whose parent is gone: everything that a guard has to find.
FAMILY = "sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &) ; echo born; wait"
FAMILY_SIZE = 4

# Prints the guard's pid when the whole family runs; never stops by itself.
PARENT = """
import asyncio, os, sys, psutil
from pathlib import Path
from headrace.local.process import Command, ManagedProcess
async def main():
    process = await ManagedProcess.start(Command("family", sys.argv[2:], Path(sys.argv[1])))
    while "born" not in process.log_tail():
        await asyncio.sleep(0.01)
    print(psutil.Process(process.pid).ppid(), flush=True)
    await process.wait()
asyncio.run(main())
"""


def shell(script: str, tmp_path: Path) -> Command:
    return Command("shell", ("sh", "-c", script), tmp_path / "shell.log")


async def start_family(tmp_path: Path) -> tuple[ManagedProcess, list[psutil.Process]]:
    process = await ManagedProcess.start(shell(FAMILY, tmp_path))
    guard = psutil.Process(process.pid).parent()
    assert guard is not None
    await until(lambda: len(guard.children(recursive=True)) == FAMILY_SIZE)
    return process, guard.children(recursive=True)


@pytest.mark.parametrize(
    ("script", "returncode"),
    [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -9 $$", -signal.SIGKILL),
        ("kill -SEGV $$", -signal.SIGSEGV),
        ("kill -TERM $$", -signal.SIGTERM),
    ],
)
async def test_its_exit_code_or_signal_is_that_of_the_command(script: str, returncode: int, tmp_path: Path) -> None:
    process = await ManagedProcess.start(shell(script, tmp_path))
    assert await process.wait() == returncode
    assert process.returncode == returncode


@pytest.mark.parametrize(("name", "reason"), [("absent", "No such file"), ("text", "Permission denied")])
async def test_a_command_that_cannot_be_executed_is_an_error_with_the_reason(
    name: str, reason: str, tmp_path: Path, new_children: NewChildren
) -> None:
    (tmp_path / "text").write_text("not a program")
    with pytest.raises(LocalStackError, match=reason):
        await ManagedProcess.start(Command("broken", (str(tmp_path / name),), tmp_path / "log"))
    assert new_children() == []


async def test_stop_asks_first_and_lets_the_command_finish(tmp_path: Path) -> None:
    script = "trap 'echo goodbye; exit 5' TERM; echo up; while :; do sleep 0.01; done"
    process = await ManagedProcess.start(shell(script, tmp_path))
    await until(lambda: "up" in process.log_tail())
    assert await process.stop() == 5
    assert process.log_tail().splitlines() == ["up", "goodbye"]


async def test_stop_kills_what_does_not_listen(tmp_path: Path) -> None:
    process = await ManagedProcess.start(shell("trap '' TERM; echo up; while :; do sleep 0.01; done", tmp_path))
    await until(lambda: "up" in process.log_tail())
    assert await process.stop(grace_s=0.05) == -signal.SIGKILL


async def test_stop_and_kill_are_safe_after_the_end(tmp_path: Path) -> None:
    process = await ManagedProcess.start(shell("exit 3", tmp_path))
    await process.wait()
    assert (await process.stop(), await process.kill(), await process.wait()) == (3, 3, 3)


@pytest.mark.parametrize("way", ["kill", "stop", "command ends", "guard is killed", "command is killed"])
async def test_nothing_that_it_started_is_left(way: str, tmp_path: Path) -> None:
    process, family = await start_family(tmp_path)
    match way:
        case "kill":
            await process.kill()
        case "stop":
            await process.stop(grace_s=1.0)
        case "command ends":
            os.kill(process.pid, signal.SIGHUP)
        case "guard is killed":
            family = [member for member in family if os.getsid(member.pid) == os.getsid(process.pid)]
            os.kill(psutil.Process(process.pid).ppid(), signal.SIGKILL)
        case "command is killed":
            os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    assert survivors(family) == []


def test_nothing_is_left_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = python(PARENT, str(tmp_path / "log"), "sh", "-c", FAMILY)
    try:
        guard = psutil.Process(int(first_line(parent)))
        everybody = [guard, *guard.children(recursive=True)]
    finally:
        end(parent)
    assert len(everybody) == FAMILY_SIZE + 1
    assert survivors(everybody) == []


def test_the_command_does_not_outlive_a_guard_that_is_killed_with_its_parent(tmp_path: Path) -> None:
    parent = python(PARENT, str(tmp_path / "log"), "sh", "-c", "echo born; exec sleep 1000")
    try:
        guard = psutil.Process(int(first_line(parent)))
        command = guard.children()
        os.kill(parent.pid, signal.SIGSTOP)  # so that it cannot notice and clean up
        guard.kill()
    finally:
        end(parent)
    assert len(command) == 1
    assert survivors([guard, *command]) == []


def test_the_end_of_the_thread_that_started_it_is_not_the_end_of_it(tmp_path: Path) -> None:
    """PR_SET_PDEATHSIG fires when a thread ends; only the death of the process counts."""
    loop = asyncio.new_event_loop()
    started: list[ManagedProcess] = []

    def start() -> None:
        started.append(loop.run_until_complete(ManagedProcess.start(shell("sleep 1000", tmp_path))))

    thread = threading.Thread(target=start)
    thread.start()
    task = Path(f"/proc/self/task/{thread.native_id}")
    thread.join()
    try:
        loop.run_until_complete(until(lambda: not task.exists()))
        # A guard that took the thread's end for ours would have answered it with SIGKILL: lower signals come first.
        assert loop.run_until_complete(started[0].stop()) == -signal.SIGTERM
    finally:
        loop.close()


async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path, new_children: NewChildren) -> None:
    for num_turns in range(0, 40, 3):
        task = asyncio.create_task(ManagedProcess.start(shell("sleep 1000", tmp_path)))
        for _ in range(num_turns):
            await asyncio.sleep(0.001)
        if task.done():
            await task.result().kill()
            continue
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert survivors(new_children()) == []


@pytest.mark.parametrize("num_turns", range(10))
def test_a_loop_that_is_closed_during_a_start_ends_it_and_does_not_hang(num_turns: int, tmp_path: Path) -> None:
    """asyncio.run cancels every task at its end, also those that a library made for itself."""

    async def leave_a_start_unfinished() -> asyncio.Task[ManagedProcess]:
        task = asyncio.create_task(ManagedProcess.start(shell("sleep 1000", tmp_path)))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        return task

    assert asyncio.run(leave_a_start_unfinished()).cancelled()


async def test_the_tail_of_the_log_is_of_this_run_only(tmp_path: Path) -> None:
    for word in ("earlier", "later"):
        process = await ManagedProcess.start(shell(f"for i in 1 2 3; do echo {word} $i; done", tmp_path))
        await process.wait()
    assert process.log_tail(max_lines=2).splitlines() == ["later 2", "later 3"]
    assert "earlier 1" in (tmp_path / "shell.log").read_text()


async def test_a_large_log_is_moved_aside_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "shell.log").write_bytes(b"x" * (MAX_LOG_BYTES + 1))
    process = await ManagedProcess.start(shell("echo new", tmp_path))
    await process.wait()
    assert (tmp_path / "shell.log").read_text() == "new\n"
    assert (tmp_path / "shell.log.1").stat().st_size == MAX_LOG_BYTES + 1


async def test_a_lock_that_is_handed_down_is_held_until_the_child_is_gone(tmp_path: Path) -> None:
    lock = OwnedLock(tmp_path / "lock")
    assert lock.try_acquire()
    command = Command("holder", ("sleep", "1000"), tmp_path / "log", kept_fds=(lock.fd,))
    process = await ManagedProcess.start(command)
    lock.release()
    assert not OwnedLock(tmp_path / "lock").try_acquire()
    await process.kill()
    again = OwnedLock(tmp_path / "lock")
    assert again.try_acquire()
    again.release()


async def test_the_command_gets_the_given_environment_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER", "ours")
    (tmp_path / "here").write_text("folder")
    script = "echo $WORD $OTHER; cat here"
    command = Command("env", ("sh", "-c", script), tmp_path / "log", env={"WORD": "hello"}, cwd=tmp_path)
    process = await ManagedProcess.start(command)
    await process.wait()
    assert process.log_tail().splitlines() == ["hello", "folder"]
