"""Where no broker is set, the running local stack is used; what is set is never mixed with it."""

from pathlib import Path

import pytest

from headrace.local.endpoints import Endpoints, write_endpoints
from headrace.local.identity import ProcessIdentity
from headrace.settings import local_cache_dir, local_data_dir, resolve_settings
from schemas.errors import LocalStackError
from schemas.settings import LocalSettings, Settings


@pytest.fixture(autouse=True)
def nobody_s_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def running_stack(data_dir: Path) -> Endpoints:
    owner = ProcessIdentity.current()
    endpoints = Endpoints(
        bootstrap_servers="127.0.0.1:1111",
        s3_endpoint="127.0.0.1:2222",
        access_key="local-access",
        secret_key="local-secret",
        bucket="local-bucket",
        pid=owner.pid,
        started_ticks=owner.started_ticks,
    )
    write_endpoints(data_dir, endpoints)
    return endpoints


def resolve(data_dir: Path, **env: str) -> tuple[Settings, dict[str, str]]:
    loaded = resolve_settings(env={"HEADRACE_LOCAL__DATA_DIR": str(data_dir), **env})
    return loaded.settings, loaded.sources


def test_a_running_stack_is_found(tmp_path: Path) -> None:
    endpoints = running_stack(tmp_path)
    settings, sources = resolve(tmp_path)
    assert settings.kafka.bootstrap_servers == endpoints.bootstrap_servers
    assert settings.storage == endpoints.storage
    assert sources["kafka.bootstrap_servers"] == f"local stack in {tmp_path}"


def test_without_one_nothing_is_set(tmp_path: Path) -> None:
    settings, sources = resolve(tmp_path)
    assert settings.kafka.bootstrap_servers is None
    assert sources["kafka.bootstrap_servers"] == "default"


def test_a_broker_that_is_set_is_used(tmp_path: Path) -> None:
    endpoints = running_stack(tmp_path)
    settings, _ = resolve(tmp_path, HEADRACE_KAFKA__BOOTSTRAP_SERVERS="mine:9092")
    assert settings.kafka.bootstrap_servers == "mine:9092"
    assert settings.storage.endpoint == endpoints.s3_endpoint


def test_local_keys_are_never_sent_to_a_storage_that_is_set(tmp_path: Path) -> None:
    running_stack(tmp_path)
    settings, _ = resolve(tmp_path, HEADRACE_STORAGE__ENDPOINT="mine:9000")
    assert (settings.storage.endpoint, settings.storage.access_key, settings.storage.bucket) == (
        "mine:9000",
        None,
        "headrace",
    )


def test_a_local_file_is_not_even_read_when_all_is_set(tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text("damaged")
    settings, _ = resolve(
        tmp_path, HEADRACE_KAFKA__BOOTSTRAP_SERVERS="mine:9092", HEADRACE_STORAGE__ENDPOINT="mine:9000"
    )
    assert settings.kafka.bootstrap_servers == "mine:9092"
    with pytest.raises(LocalStackError, match="damaged"):
        resolve(tmp_path)


def test_folders_are_the_usual_ones_unless_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert local_data_dir(Settings()) == tmp_path / "data/headrace"
    assert local_cache_dir(Settings()) == tmp_path / "cache/headrace"
    chosen = Settings(local=LocalSettings(data_dir="~/d", cache_dir="/c"))
    assert (local_data_dir(chosen), local_cache_dir(chosen)) == (tmp_path / "home/d", Path("/c"))
    assert local_data_dir(Settings(local=LocalSettings(data_dir="d"))) == tmp_path / "d"
