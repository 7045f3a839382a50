"""Our services of docker-compose.yml as processes: their commands and environments, on the test's Kafka and S3."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.local.background import BackgroundStack
from tests.docker.compose import ROOT, load_compose
from tests.docker.processes import container_environment, replaced, running, stop, wait_until

pytestmark = pytest.mark.integration

SERVICES: dict[str, dict[str, Any]] = load_compose()["services"]
# The entry point of all our images.
HEADRACE = str(Path(sys.executable).parent / "headrace")
READY = ROOT / "docker" / "ready.py"
ASK = ROOT / "docs" / "clients" / "python" / "ask.py"
READY_WITHIN_S = 90


class Services:
    """Starts services of the file in a namespace of their own."""

    def __init__(self, stack: BackgroundStack, namespace: str, folder: Path) -> None:
        self._folder = folder
        storage = stack.s3
        file = SERVICES["gate"]["environment"]
        self._addresses = {
            "kafka:19092": stack.bootstrap_servers,
            "s3:8333": str(storage.endpoint),
            file["HEADRACE_STORAGE__SECRET_KEY"]: str(storage.secret_key),
        }
        self._own = {
            "HEADRACE_TOPICS__NAMESPACE": namespace,
            "HEADRACE_STORAGE__BUCKET": storage.bucket,
            "HEADRACE_STORAGE__ACCESS_KEY": str(storage.access_key),
        }

    def home(self, name: str) -> Path:
        """The working folder of a service; in a container it cannot be written to."""
        return self._folder / name / "home"

    def environment(self, name: str, port: int | None = None) -> dict[str, str]:
        """The environment of a service, with the test's addresses and, for a role, a free port."""
        own = {key: replaced(value, self._addresses) for key, value in SERVICES[name]["environment"].items()}
        ports = {key: str(port) for key in own if key.endswith("__METRICS_PORT")}
        return container_environment({**own, **self._own, **ports}, self._folder / name)

    def start(self, name: str, port: int, started: contextlib.ExitStack) -> "subprocess.Popen[bytes]":
        """Start one role; it is stopped when `started` ends."""
        command = [HEADRACE, *SERVICES[name]["command"]]
        return started.enter_context(running(command, self.environment(name, port), self._folder / name))

    def wait_ready(self, name: str, port: int, process: "subprocess.Popen[bytes]") -> None:
        """Wait until the health check of the file says that a role is ready."""
        [kind, python, script, _] = SERVICES[name]["healthcheck"]["test"]
        assert (kind, python, Path(script).name) == ("CMD", "python", READY.name)
        check = [sys.executable, str(READY), str(port)]
        wait_until(
            lambda: subprocess.run(check, capture_output=True, check=False).returncode == 0,
            process,
            self._folder / name,
            READY_WITHIN_S,
        )


@pytest.fixture
def services(stack: BackgroundStack, namespace: str, tmp_path: Path) -> Services:
    """The services of the file, in a namespace of their own."""
    return Services(stack, namespace, tmp_path)


def test_the_topics_service_may_run_again_and_again(services: Services) -> None:
    command = [HEADRACE, *SERVICES["topics"]["command"]]
    for _ in range(2):
        subprocess.run(command, env=services.environment("topics"), check=True)


# Four processes start at once, one of them with torch and a model: on a busy machine that takes its time.
@pytest.mark.timeout(300)
def test_the_roles_as_the_file_starts_them_answer_a_plain_client(
    services: Services, stack: BackgroundStack, namespace: str, unused_tcp_port_factory: Callable[[], int]
) -> None:
    subprocess.run([HEADRACE, *SERVICES["topics"]["command"]], env=services.environment("topics"), check=True)
    ports = {name: unused_tcp_port_factory() for name in ("gate", "pipeline", "worker")}
    with contextlib.ExitStack() as started:
        roles = {name: services.start(name, port, started) for name, port in ports.items()}
        for name, process in roles.items():
            services.wait_ready(name, ports[name], process)
        asked = subprocess.run(
            [sys.executable, ASK, "Say hello.", "alice"],
            env={**os.environ, "KAFKA_BROKERS": stack.bootstrap_servers, "NAMESPACE": namespace},
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        ended = json.loads(asked.stderr.splitlines()[-1])
        assert ended["status"] == "completed", asked.stderr
        assert asked.stdout.strip()
        assert ended["usage"]["completion_tokens"] > 0
        assert {name: stop(process) for name, process in roles.items()} == dict.fromkeys(roles, 0)
    for name in roles:
        assert not list(services.home(name).iterdir()), "in a container a role can write to /tmp and its cache only"
