"""A data folder has one user at a time, and a refusal names the other."""

import os
import signal
import stat
from pathlib import Path

import pytest

from headrace.local.identity import ProcessIdentity
from headrace.local.lock import LOCK_NAME, OwnedLock, claim_folder
from schemas.errors import LocalStackError
from tests.local.processes import end, first_line, python

CLAIMER = """
import asyncio, sys
from pathlib import Path
from headrace.local.lock import claim_folder
lock = asyncio.run(claim_folder(Path(sys.argv[1])))
print("claimed", flush=True)
sys.stdin.read()
"""

# Claims, starts a child that keeps the lock and would live on for a moment, and is then killed by the test.
ORPHAN_MAKER = """
import asyncio, subprocess, sys
from pathlib import Path
from headrace.local.lock import claim_folder
lock = asyncio.run(claim_folder(Path(sys.argv[1])))
child = subprocess.Popen(["sleep", sys.argv[2]], pass_fds=(lock.fd,))
print(child.pid, flush=True)
sys.stdin.read()
"""


async def test_a_folder_in_use_is_refused_with_the_pid_of_its_user(tmp_path: Path) -> None:
    process = python(CLAIMER, str(tmp_path))
    try:
        first_line(process)
        with pytest.raises(LocalStackError, match=f"{tmp_path}.* process {process.pid};"):
            await claim_folder(tmp_path)
    finally:
        end(process)


async def test_a_folder_is_free_when_its_user_was_killed(tmp_path: Path) -> None:
    process = python(CLAIMER, str(tmp_path))
    first_line(process)
    end(process)
    lock = await claim_folder(tmp_path)
    assert lock.owner() == ProcessIdentity.current()
    lock.release()


async def test_a_claim_waits_for_what_a_killed_user_left_running(tmp_path: Path) -> None:
    process = python(ORPHAN_MAKER, str(tmp_path), "0.5")
    first_line(process)
    end(process)
    lock = await claim_folder(tmp_path)
    lock.release()


async def test_leftovers_that_do_not_end_are_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.local.lock.ORPHANS_END_WITHIN_S", 0.1)
    process = python(ORPHAN_MAKER, str(tmp_path), "1000")
    orphan = int(first_line(process))
    end(process)
    try:
        with pytest.raises(LocalStackError, match="children of a process that is gone"):
            await claim_folder(tmp_path)
    finally:
        os.kill(orphan, signal.SIGKILL)


async def test_a_folder_in_use_is_refused_within_one_process_too(tmp_path: Path) -> None:
    lock = await claim_folder(tmp_path / "new" / "folder")
    try:
        with pytest.raises(LocalStackError, match=f"process {os.getpid()};"):
            await claim_folder(tmp_path / "new" / "folder")
    finally:
        lock.release()
    lock.release()
    (await claim_folder(tmp_path / "new" / "folder")).release()


async def test_a_new_folder_is_for_its_owner_only(tmp_path: Path) -> None:
    (await claim_folder(tmp_path / "mine")).release()
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "mine" / LOCK_NAME).stat().st_mode) == 0o600


async def test_a_folder_that_cannot_be_made_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LocalStackError, match="choose another"):
        await claim_folder(tmp_path / "file" / "folder")


def test_the_descriptor_of_a_lock_that_is_not_held_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalStackError, match="not held"):
        _ = OwnedLock(tmp_path / "lock").fd


def test_a_pid_that_was_given_again_is_another_process() -> None:
    current = ProcessIdentity.current()
    assert current.is_alive
    assert not ProcessIdentity(current.pid, current.started_ticks + 1).is_alive


def test_a_dead_process_and_a_zombie_are_not_alive() -> None:
    process = python("print('up', flush=True); input()")
    first_line(process)
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    alive = [identity.is_alive]
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table of processes
    alive.append(identity.is_alive)
    end(process)
    assert alive == [True, False]
    assert ProcessIdentity.of(process.pid) is None
