"""The stack starts both or neither, can be found while it runs and only then, and never leaves anything behind."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from headrace.local.background import BackgroundStack
from headrace.local.endpoints import FILE_NAME, Endpoints, write_endpoints
from headrace.local.identity import ProcessIdentity
from headrace.local.lock import claim_folder
from headrace.local.stack import LocalStack, LocalStackSettings, read_endpoints, reset
from runtime.kafka import make_admin
from runtime.storage import ObjectStore
from schemas.errors import LocalStackError
from schemas.settings import KafkaSettings
from tests.local.conftest import NewChildren
from tests.local.processes import ROOT, survivors


def names_in(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


def endpoints_of(identity: ProcessIdentity) -> Endpoints:
    return Endpoints(
        bootstrap_servers="127.0.0.1:1",
        s3_endpoint="127.0.0.1:2",
        access_key="AK",
        secret_key="SK",
        bucket="b-1",
        pid=identity.pid,
        started_ticks=identity.started_ticks,
    )


@pytest.mark.integration
async def test_the_session_has_a_real_kafka_and_a_real_s3(stack: BackgroundStack, namespace: str) -> None:
    """Also the proof that a stack in a thread serves the loops of many tests."""
    admin = make_admin(KafkaSettings(bootstrap_servers=stack.bootstrap_servers))
    await admin.start()
    cluster = await admin.describe_cluster()
    await admin.close()
    assert [f"{node['host']}:{node['port']}" for node in cluster["brokers"]] == [stack.bootstrap_servers]
    store = ObjectStore(stack.s3)
    await store.put(f"{namespace}/key", b"value")
    assert await store.keys(f"{namespace}/") == [f"{namespace}/key"]
    store.close()


@pytest.mark.integration
async def test_a_running_stack_is_published_and_a_stopped_one_is_not(tmp_path: Path, new_children: NewChildren) -> None:
    told: list[tuple[str, str, float]] = []
    stack = LocalStack(LocalStackSettings(data_dir=tmp_path), lambda *progress: told.append(progress))
    async with stack:
        file = tmp_path / FILE_NAME
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert read_endpoints(tmp_path) == stack.endpoints
        assert stack.endpoints.pid == os.getpid()
        assert stack.endpoints.bucket == "headrace"
        with pytest.raises(LocalStackError, match=f"in use by process {os.getpid()}"):
            await reset(tmp_path)
        with pytest.raises(LocalStackError, match=f"in use by process {os.getpid()}"):
            await LocalStack(LocalStackSettings(data_dir=tmp_path)).start()
        watching = asyncio.create_task(stack.watch())
        await asyncio.sleep(0)
    await watching  # it ends quietly with the stack
    assert read_endpoints(tmp_path) is None
    assert not file.exists()
    for component in ("kafka", "s3"):
        states = [state for name, state, _ in told if name == component]
        assert states[-3:] == ["ready", "stopping", "stopped"]
        assert states[-4] == "starting"
    assert all(seconds >= 0 for _, _, seconds in told)
    await reset(tmp_path)
    assert names_in(tmp_path) == ["owner.lock"]
    assert new_children() == []


@pytest.mark.integration
async def test_a_component_that_dies_is_told_to_whoever_watches_and_can_be_started_again(tmp_path: Path) -> None:
    async with LocalStack(LocalStackSettings(data_dir=tmp_path)) as stack:
        for part, name in ((stack.s3, "SeaweedFS"), (stack.kafka, "Kafka")):
            watching = asyncio.create_task(stack.watch())
            os.kill(part.process.pid, signal.SIGKILL)
            with pytest.raises(LocalStackError, match=rf"{name}.* ended with code -9"):
                await watching
            await part.start()
        await stack.kafka.stop()


@pytest.mark.integration
async def test_what_is_missing_is_named_and_the_other_half_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_children: NewChildren
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    stack = LocalStack(LocalStackSettings(data_dir=tmp_path))
    with pytest.raises(LocalStackError, match="no `java` on PATH"):
        await stack.start()
    assert new_children() == []
    assert read_endpoints(tmp_path) is None
    await reset(tmp_path)


@pytest.mark.integration
async def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path, new_children: NewChildren) -> None:
    states: list[str] = []
    seen = asyncio.Event()

    def on_progress(component: str, state: str, seconds: float) -> None:
        states.append(f"{component} {state}")
        if states[-1] == "kafka starting":
            seen.set()

    task = asyncio.create_task(LocalStack(LocalStackSettings(data_dir=tmp_path), on_progress).start())
    await seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert new_children() == []
    await reset(tmp_path)


KILLED_SESSION = """
import os, psutil, signal
def test_that_is_killed(stack):
    for process in psutil.Process().children(recursive=True):
        print("CHILD", process.name(), process.pid, flush=True)
    print("FOLDER", stack.stack.settings.data_dir, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.integration
def test_a_killed_test_session_leaves_no_process_and_no_endpoints(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import stack\n__all__ = ['stack']\n")
    (tmp_path / "test_killed.py").write_text(KILLED_SESSION)
    command = [sys.executable, "-m", "pytest", "-s", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DEBUG_TEMPROOT": str(tmp_path)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines()]
    children = {int(line[2]): line[1] for line in lines if line[:1] == ["CHILD"]}
    assert {"java", "weed"} <= set(children.values())
    assert survivors([psutil.Process(pid) for pid in children if psutil.pid_exists(pid)]) == []
    folder = next(Path(line[1]) for line in lines if line[:1] == ["FOLDER"])
    assert (folder / FILE_NAME).exists()
    assert read_endpoints(folder) is None


@pytest.mark.parametrize("name", [".", "kafka", "s3"])
async def test_reset_refuses_while_any_part_is_in_use(name: str, tmp_path: Path) -> None:
    (await claim_folder(tmp_path)).release()
    (tmp_path / "kafka" / "data").mkdir(parents=True)
    lock = await claim_folder(tmp_path / name)
    with pytest.raises(LocalStackError, match="in use"):
        await reset(tmp_path)
    assert (tmp_path / "kafka" / "data").exists()
    lock.release()
    await reset(tmp_path)
    assert not (tmp_path / "kafka").exists()


async def test_reset_leaves_a_folder_that_is_not_ours_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(LocalStackError, match="was not made by headrace"):
        await reset(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


async def test_reset_does_not_follow_links_out_of_the_folder(tmp_path: Path) -> None:
    precious = tmp_path / "elsewhere"
    precious.mkdir()
    (precious / "file").write_text("x")
    data_dir = tmp_path / "data"
    (await claim_folder(data_dir)).release()
    (data_dir / "link").symlink_to(precious)
    await reset(data_dir)
    assert (precious / "file").exists()
    assert not (data_dir / "link").is_symlink()


async def test_reset_of_nothing_is_nothing(tmp_path: Path) -> None:
    await reset(tmp_path / "absent")
    assert names_in(tmp_path) == []


def test_endpoints_are_those_of_a_living_process(tmp_path: Path) -> None:
    current = ProcessIdentity.current()
    assert read_endpoints(tmp_path) is None
    write_endpoints(tmp_path, endpoints_of(current))
    assert read_endpoints(tmp_path) == endpoints_of(current)
    write_endpoints(tmp_path, endpoints_of(ProcessIdentity(current.pid, current.started_ticks - 1)))
    assert read_endpoints(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{}", '{"pid": "x"}'])
def test_damaged_endpoints_are_an_error_that_says_what_to_do(content: str, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(LocalStackError, match="delete the file"):
        read_endpoints(tmp_path)


def test_endpoints_do_not_show_their_keys() -> None:
    shown = repr(endpoints_of(ProcessIdentity.current()))
    assert "AK" not in shown
    assert "SK" not in shown
