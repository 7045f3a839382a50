"""`headrace up` and `headrace demo` as a user runs them, with every real process."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.tied import tied

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

HEADRACE = Path(sys.executable).with_name("headrace")


@asynccontextmanager
async def headrace(folder: Path, *words: str, is_alone: bool = True, **env: str) -> AsyncIterator[Process]:
    """A running command with its data in `folder`. At the end nothing may be left there, unless others run beside."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    process = await asyncio.create_subprocess_exec(
        *tied(HEADRACE, *words),
        stdout=PIPE,
        stderr=STDOUT,
        env={**clean, "XDG_CONFIG_HOME": str(folder), "HEADRACE_LOCAL__DATA_DIR": str(folder / "data"), **env},
        cwd=folder,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
        assert not is_alone or await gone(folder), left(folder)


def left(folder: Path) -> list[psutil.Process]:
    """Processes that belong to this data folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # it may end while it is looked at
            told = process.environ().get("HEADRACE_LOCAL__DATA_DIR", "")
            if told == str(folder / "data") and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


async def gone(folder: Path) -> bool:
    """Whether all of them end; guards need a moment after a kill."""
    for _ in range(100):
        if not left(folder):
            return True
        await asyncio.sleep(0.1)
    return False


async def until(process: Process, text: str) -> str:
    """Read lines up to one that holds the text."""
    assert process.stdout is not None
    seen = []
    async for line in process.stdout:
        seen.append(line.decode())
        if text in seen[-1]:
            return "".join(seen)
    raise AssertionError(f"{text!r} never came: {''.join(seen)}")


async def rest(process: Process) -> str:
    out, _ = await process.communicate()
    return out.decode()


async def test_ctrl_c_while_all_starts_leaves_nothing(tmp_path: Path) -> None:
    async with headrace(tmp_path, "up") as process:
        await until(process, "Kafka: ")
        process.send_signal(signal.SIGINT)
        shown = await rest(process)
        assert process.returncode == 130, shown
    assert "Traceback" not in shown
    assert "stopping" in shown


async def test_up_runs_until_it_is_stopped_and_the_demo_uses_what_runs(tmp_path: Path) -> None:
    async with headrace(tmp_path, "up") as process:
        assert "worker: ready" in await until(process, "Ctrl-C stops all.")

        async with headrace(tmp_path, "demo", is_alone=False, COLUMNS="160") as demo:
            shown = await rest(demo)
            assert demo.returncode == 0, shown
        assert shown.count("first token after") == 2
        assert "prompt tokens are the first turn's" in shown
        assert "s3://headrace/headrace/sessions/default/demo-" in shown
        assert "000002-" in shown
        assert "Nothing is pending." in shown
        assert "What was running before runs on." in shown

        async with headrace(tmp_path, "up", is_alone=False) as second:
            assert "it runs already" in await rest(second)
            assert second.returncode == 1

        process.send_signal(signal.SIGTERM)
        assert "the data is kept" in await rest(process)
        assert process.returncode == 0


async def test_a_second_ctrl_c_ends_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    async with headrace(tmp_path, "up") as process:
        await until(process, "gate: starting")
        process.send_signal(signal.SIGINT)
        await until(process, "stopping")
        process.send_signal(signal.SIGINT)
        await rest(process)
        assert process.returncode in (0, 130)


async def test_reset_deletes_the_data_of_the_folder_and_nothing_else(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "mine.txt").write_text("not headrace's")
    async with headrace(tmp_path, "demo", "--reset", "--no-chat") as process:
        assert "was not made by headrace" in await rest(process)
        assert process.returncode == 1
    assert (data / "mine.txt").exists()
    (data / "mine.txt").unlink()
    async with headrace(tmp_path, "demo", "--reset", "--no-chat") as process:
        assert "deleted the data" in await rest(process)
        assert process.returncode == 0
