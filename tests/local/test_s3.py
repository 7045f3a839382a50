"""The local S3 keeps objects and keys through every way of stopping, and lets nobody in without the keys."""

import os
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from headrace.local.background import BackgroundStack
from headrace.local.s3 import LocalS3, find_weed, load_credentials
from headrace.local.settings import LocalS3Settings
from runtime.storage import ObjectStore
from schemas.errors import LocalStackError, StorageUnavailable
from schemas.settings import StorageSettings
from tests.local.conftest import NewChildren


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A path longer than a Unix socket's may be, with everything that an option would trip over."""
    return tmp_path / ("long" * 30) / "dätä, ü 日本"


@pytest.fixture
async def s3(data_dir: Path) -> AsyncIterator[LocalS3]:
    """A server of the test's own, not started."""
    server = LocalS3(LocalS3Settings(data_dir=data_dir, bucket="objects"))
    yield server
    await server.stop()


async def put(storage: StorageSettings, key: str, data: bytes) -> None:
    store = ObjectStore(storage)
    try:
        await store.put(key, data)
    finally:
        store.close()


async def get(storage: StorageSettings, key: str) -> bytes:
    store = ObjectStore(storage)
    try:
        return await store.get(key)
    finally:
        store.close()


@pytest.mark.integration
async def test_objects_keys_and_address_survive_a_stop_a_kill_and_a_change_of_ports(
    s3: LocalS3, data_dir: Path, new_children: NewChildren
) -> None:
    storage = await s3.start()
    await put(storage, "a/stopped", b"1")
    assert await s3.start() == storage
    with pytest.raises(LocalStackError, match=f"in use by process {os.getpid()};"):
        await LocalS3(LocalS3Settings(data_dir=data_dir)).start()
    await s3.stop()
    assert new_children() == []

    assert await s3.start() == storage
    large = os.urandom(9_000_000)  # several chunks of SeaweedFS
    await put(storage, "a/killed", large)
    os.kill(s3.process.pid, signal.SIGKILL)
    assert await s3.wait() == -signal.SIGKILL

    (data_dir / "ports.json").unlink()
    moved = await s3.start()
    # A master that resumes may refuse the volume server's first heartbeat; the next one comes 15 s later.
    log = (data_dir / "logs" / "weed.log").read_text()
    assert log.count("Initializing new cluster") == 3
    assert "Not current leader" not in log
    assert moved == msgspec.structs.replace(storage, endpoint=moved.endpoint)
    assert await get(moved, "a/stopped") == b"1"
    assert await get(moved, "a/killed") == large
    await s3.stop()
    with pytest.raises(LocalStackError, match="not started"):
        _ = s3.storage


@pytest.mark.integration
async def test_nobody_gets_in_without_the_keys(stack: BackgroundStack, namespace: str) -> None:
    await put(stack.s3, f"{namespace}/secret", b"x")
    for wrong in ({"secret_key": "guess"}, {"access_key": "guess"}, {"access_key": None, "secret_key": None}):
        with pytest.raises(StorageUnavailable):
            await get(msgspec.structs.replace(stack.s3, **wrong), f"{namespace}/secret")


@pytest.mark.integration
def test_the_keys_are_in_no_file_that_others_can_read(stack: BackgroundStack) -> None:
    secret = str(stack.s3.secret_key).encode()
    with_secret = [file for file in stack.stack.settings.data_dir.rglob("*.*") if contains(file, secret)]
    assert {file.name for file in with_secret} >= {"credentials.json", "endpoints.json"}
    assert [file for file in with_secret if stat.S_IMODE(file.stat().st_mode) & 0o077] == []


def contains(file: Path, needle: bytes) -> bool:
    return file.is_file() and needle in file.read_bytes()


@pytest.mark.integration
async def test_a_server_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, new_children: NewChildren
) -> None:
    (tmp_path / "data").write_text("a file where SeaweedFS wants its folder")
    with pytest.raises(LocalStackError):
        await LocalS3(LocalS3Settings(data_dir=tmp_path)).start()
    (tmp_path / "data").unlink()
    with pytest.raises(LocalStackError, match=r"SeaweedFS ended with code .* before it was ready"):
        await LocalS3(LocalS3Settings(data_dir=tmp_path, weed=Path("/bin/false"))).start()
    assert new_children() == []


def test_keys_are_made_once_and_differ_from_folder_to_folder(tmp_path: Path) -> None:
    first = load_credentials(tmp_path / "a.json")
    assert load_credentials(tmp_path / "a.json") == first
    assert load_credentials(tmp_path / "b.json") != first
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o600
    assert first.secret_key not in repr(first)


def test_damaged_keys_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(LocalStackError, match="delete it"):
        load_credentials(tmp_path / "a.json")


def test_the_binary_of_the_wheel_is_found_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert find_weed(None).name == "weed"


def test_a_missing_binary_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.metadata.files", lambda name: None)
    with pytest.raises(LocalStackError, match=r"headrace\[local\].*docker compose up"):
        find_weed(None)
