"""What must be installed: Python, Java and Maven for the local Kafka, a C++ compiler."""

import asyncio
import os
import platform
import shutil
import sys

from headrace.doctor.base import Check, Finding, failed, ok, skipped, warning
from headrace.doctor.commands import ask
from headrace.doctor.situation import Situation
from headrace.local.java import ANSWER_WITHIN_S, MIN_VERSION, REMEDY, find_java
from headrace.local.kafka_jars import KAFKA_VERSION, MARKER
from schemas.errors import LocalStackError

PYTHON, JAVA, MAVEN, COMPILER = "Python", "Java", "Maven", "C++ compiler"
NAMES = (PYTHON, JAVA, MAVEN, COMPILER)

_MIN_PYTHON = (3, 11)
_COMPILER_REMEDY = "install one (Debian, Ubuntu: apt-get install g++), or name yours in CXX"
_NOT_NEEDED = "not needed: kafka.bootstrap_servers is set, so no Kafka runs here"


def checks(situation: Situation) -> list[Check]:
    """All checks of this file."""
    return [
        Check(PYTHON, python, f"install Python {'.'.join(map(str, _MIN_PYTHON))} or newer"),
        # `find_java` ends what it started by itself, after ANSWER_WITHIN_S.
        Check(JAVA, lambda: java(situation), REMEDY, limit_s=ANSWER_WITHIN_S + 1),
        Check(MAVEN, lambda: maven(situation), REMEDY),
        Check(COMPILER, compiler, _COMPILER_REMEDY),
    ]


async def python() -> Finding:
    """The Python that runs this."""
    found = f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})"
    if sys.version_info < _MIN_PYTHON:
        return failed(PYTHON, found, f"install Python {'.'.join(map(str, _MIN_PYTHON))} or newer")
    return ok(PYTHON, found)


async def java(situation: Situation) -> Finding:
    """The Java that the local Kafka would use. Missing, it matters only where Kafka runs on this machine."""
    try:
        found = await find_java()
    except LocalStackError as error:
        if not situation.needs_local_stack:
            return skipped(JAVA, _NOT_NEEDED)
        return failed(JAVA, error.message.removesuffix(REMEDY).rstrip("; "), REMEDY)
    return ok(JAVA, f"{found.version} ({found.executable}); Kafka needs {MIN_VERSION}")


async def maven(situation: Situation) -> Finding:
    """Maven, which downloads Kafka once."""
    executable = await asyncio.to_thread(shutil.which, "mvn")
    if executable is None:
        return await asyncio.to_thread(_without_maven, situation)
    answer = await ask(executable, "--batch-mode", "-Dstyle.color=never", "--version")
    if answer.returncode != 0:
        return _unless_needed(situation, f"{executable} --version fails: {answer.first_line}")
    return ok(MAVEN, f"{answer.first_line} ({executable})")


def _without_maven(situation: Situation) -> Finding:
    return _unless_needed(situation, f"there is no `mvn` on PATH, and Kafka {KAFKA_VERSION} is still to be downloaded")


def _unless_needed(situation: Situation, fault: str) -> Finding:
    if not situation.needs_local_stack:
        return skipped(MAVEN, _NOT_NEEDED)
    if situation.settings.local.kafka_home or os.environ.get("KAFKA_HOME"):
        return skipped(MAVEN, "not needed: the local Kafka is the one in KAFKA_HOME")
    if (situation.cache_dir / f"kafka-{KAFKA_VERSION}" / MARKER).exists():
        return skipped(MAVEN, f"not needed: Kafka {KAFKA_VERSION} is downloaded already")
    return failed(MAVEN, fault, REMEDY)


async def compiler() -> Finding:
    """The compiler of kernels: without one a worker may lack the fast ones."""
    wanted = os.environ.get("CXX") or "g++"
    executable = await asyncio.to_thread(shutil.which, wanted)
    if executable is None:
        return warning(COMPILER, f"there is no `{wanted}` on PATH; a worker's kernels are compiled", _COMPILER_REMEDY)
    answer = await ask(executable, "--version")
    if answer.returncode != 0:
        return warning(COMPILER, f"{executable} --version fails: {answer.first_line}", _COMPILER_REMEDY)
    return ok(COMPILER, f"{answer.first_line} ({executable})")
