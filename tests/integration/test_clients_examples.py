"""The programs of docs/clients.md, run as they stand: plain Kafka clients that know nothing of headrace's packages."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace.local.background import BackgroundStack
from headrace.local.kafka_jars import find_jars
from headrace.local.settings import LocalKafkaSettings, ignore_report
from runtime.kafka import partition_for
from runtime.topics import create_missing
from schemas.names import Names
from schemas.settings import DEFAULT_MODEL, KafkaSettings, TopicsSettings
from schemas.topics import registry
from tests.integration.scripted_worker import ANSWER, REFUSE, SAY_ALL, SAY_HALF, WRONG, ScriptedWorker

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "clients.md"
CLIENTS = DOCUMENT.parent / "clients"

# Go and Node fetch their client libraries from their registries: they run where this says "all".
SWITCH = "HEADRACE_TEST_CLIENTS"
NUM_PARTITIONS = 4
TIMEOUT_S = 60

# Kafka's murmur2 puts it into partition 1 of four, librdkafka's own CRC32 into partition 3.
SESSION = "alice"


class Asked(NamedTuple):
    """What a program printed, and how it ended."""

    stdout: str
    stderr: str
    exit_code: int


Ask = Callable[..., Asked]


def _needs(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")


def _needs_downloads(tool: str) -> None:
    _needs(tool)
    if os.environ.get(SWITCH) != "all":
        pytest.skip(f"downloads a client library: set {SWITCH}=all to run it")


def _python(_: Path) -> list[str]:
    return [sys.executable, str(CLIENTS / "python" / "ask.py")]


def _java(folder: Path) -> list[str]:
    _needs("java", "javac")
    jars = asyncio.run(find_jars(LocalKafkaSettings(data_dir=folder), ignore_report))
    # One thread of compilation is plenty for a program that lives for two seconds.
    flags = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", jars.class_path]
    subprocess.run(["javac", "-d", folder, "-cp", jars.class_path, CLIENTS / "java" / "Ask.java"], check=True)
    return ["java", *flags[:-1], f"{folder}:{flags[-1]}", "Ask"]


def _kcat(_: Path) -> list[str]:
    _needs("kcat", "jq", "bash")
    return ["bash", str(CLIENTS / "kcat" / "ask.sh")]


def _go(folder: Path) -> list[str]:
    _needs_downloads("go")
    subprocess.run(["go", "build", "-o", folder / "ask", "ask.go"], cwd=CLIENTS / "go", check=True)
    return [str(folder / "ask")]


def _node(folder: Path) -> list[str]:
    _needs_downloads("npm")
    shutil.copytree(CLIENTS / "node", folder, dirs_exist_ok=True)
    subprocess.run(["npm", "install", "--prefer-offline", "--no-audit", "--no-fund"], cwd=folder, check=True)
    return ["node", str(folder / "ask.js")]


PROGRAMS = {"python": _python, "java": _java, "kcat": _kcat, "go": _go, "node": _node}
MODULE = pytest.fixture(scope="module")


@MODULE
def names() -> Names:
    """One namespace for all programs: topics are made once."""
    return Names(f"clients-{os.getpid()}")


@MODULE
def worker(stack: BackgroundStack, names: Names) -> Iterator[ScriptedWorker]:
    """Something that answers, on topics as `headrace topics create` makes them."""
    specs = registry(names, TopicsSettings(namespace=names.namespace, partitions=NUM_PARTITIONS), [DEFAULT_MODEL])
    asyncio.run(create_missing(KafkaSettings(bootstrap_servers=stack.bootstrap_servers), specs))
    with ScriptedWorker(stack.bootstrap_servers, names) as running:
        yield running


@pytest.fixture(scope="module", params=PROGRAMS)
def ask(
    request: pytest.FixtureRequest,
    stack: BackgroundStack,
    names: Names,
    tmp_path_factory: pytest.TempPathFactory,
) -> Ask:
    """Runs the program of one language."""
    command = PROGRAMS[request.param](tmp_path_factory.mktemp(request.param))
    environment = {**os.environ, "KAFKA_BROKERS": stack.bootstrap_servers, "NAMESPACE": names.namespace}

    def run(*arguments: str) -> Asked:
        done = subprocess.run(
            [*command, *arguments], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        return Asked(done.stdout, done.stderr, done.returncode)

    return run


@pytest.mark.integration
def test_a_plain_client_prints_the_answer_once_whatever_else_is_in_the_log(ask: Ask, worker: ScriptedWorker) -> None:
    asked = ask(SAY_ALL, SESSION)
    assert asked.stdout == f"{ANSWER}\n", asked.stderr
    assert WRONG not in asked.stderr
    assert asked.exit_code == 0
    assert worker.heard[-1].key == SESSION.encode()
    assert worker.heard[-1].partition == partition_for(SESSION.encode(), NUM_PARTITIONS)


@pytest.mark.integration
def test_a_plain_client_takes_from_the_result_what_it_has_not_read_as_deltas(ask: Ask, worker: ScriptedWorker) -> None:
    asked = ask(SAY_HALF)
    assert asked.stdout == f"{ANSWER}\n", asked.stderr
    heard = worker.heard[-1]
    assert heard.partition == partition_for(heard.key, NUM_PARTITIONS)
    assert json.loads(heard.value)["id"] == heard.key.decode()


@pytest.mark.integration
def test_a_plain_client_says_why_a_request_failed_and_ends_with_an_error(ask: Ask, worker: ScriptedWorker) -> None:
    asked = ask(REFUSE)
    assert asked.exit_code == 1
    assert "nobody serves it" in asked.stdout + asked.stderr


def test_the_document_holds_each_program_word_for_word() -> None:
    held = dict(re.findall(r"^<!-- (\S+) -->\n```\w+\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE))
    programs = {
        str(path.relative_to(DOCUMENT.parent)): path.read_text()
        for path in CLIENTS.rglob("*")
        if path.stem.lower() in ("ask", "large")
    }
    assert len(programs) == len(PROGRAMS) + 1
    assert held == programs
