"""What the roles of `headrace up` are told, and what must not be seen of it in a list of processes."""

from pathlib import Path

from headrace.ensemble import Ensemble, _make_ours, headrace_command
from headrace.local.stack import reset
from runtime.config import load_settings

SECRET = "hunter2"
OVERRIDES = [
    "kafka.startup_timeout_s=7",
    "kafka.bootstrap_servers=host:9092",
    f"kafka.sasl_password={SECRET}",
    "storage.endpoint=host:9000",
    f"storage.secret_key={SECRET}",
    "topics.partitions=3",
]


def test_secrets_go_to_a_role_by_its_environment() -> None:
    ensemble = Ensemble(load_settings(None, {}, OVERRIDES), overrides=OVERRIDES)
    role = ensemble._role("worker", 4711)
    assert SECRET not in " ".join(role.command)
    assert role.env["HEADRACE_KAFKA__SASL_PASSWORD"] == SECRET
    assert role.env["HEADRACE_STORAGE__SECRET_KEY"] == SECRET
    assert "topics.partitions=3" in role.command


def test_a_role_that_is_told_so_has_the_settings_of_the_caller() -> None:
    loaded = load_settings(None, {}, OVERRIDES)
    role = Ensemble(loaded, overrides=OVERRIDES)._role("gate", 4711)
    flags = [value for name, value in zip(role.command, role.command[1:], strict=False) if name == "--set"]
    told = load_settings(None, role.env, flags).settings
    assert (told.kafka, told.storage, told.topics) == (
        loaded.settings.kafka,
        loaded.settings.storage,
        loaded.settings.topics,
    )
    assert (told.gate.metrics_port, role.ready_port) == (4711, 4711)


def test_a_role_waits_at_its_start_for_the_kafka_that_starts_beside_it() -> None:
    told = load_settings(None, Ensemble(load_settings(None, {}))._role("gate", 4711).env).settings
    assert told.kafka.startup_timeout_s > load_settings(None, {}).settings.kafka.startup_timeout_s


def test_only_the_worker_is_a_static_member_and_keeps_the_id_that_was_chosen() -> None:
    ensemble = Ensemble(load_settings(None, {}))
    assert ensemble._role("worker", 1).env["HEADRACE_WORKER__INSTANCE_ID"] == "local-worker"
    assert not any("INSTANCE_ID" in name for name in ensemble._role("gate", 1).env)
    chosen = Ensemble(load_settings(None, {}, ["worker.instance_id=w-7"]))
    assert "HEADRACE_WORKER__INSTANCE_ID" not in chosen._role("worker", 1).env


def test_our_own_command_line_is_found() -> None:
    assert headrace_command()[0].endswith("/headrace")


async def test_a_data_folder_that_holds_only_logs_can_be_reset(tmp_path: Path) -> None:
    data = tmp_path / "new" / "data"
    _make_ours(data)
    (data / "logs").mkdir()
    _make_ours(data)
    await reset(data)
    assert not (data / "logs").exists()
