"""The Java that runs Kafka: found, and its version asked for, before anything is downloaded for it."""

import asyncio
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import LocalStackError

# Kafka 4 servers need it (KIP-1013).
MIN_VERSION = 17

ANSWER_WITHIN_S = 30.0

REMEDY = (
    "install a JDK and Maven (Debian, Ubuntu: apt-get install default-jdk-headless maven), "
    "or run Kafka in a container: docker compose up"
)


@dataclass(frozen=True)
class Java:
    """A Java that is new enough. `banner` is what `java -version` says, which tells builds of one version apart."""

    executable: Path
    version: int
    banner: str


async def find_java() -> Java:
    """Java of JAVA_HOME, else of PATH. Raises LocalStackError if there is none, or if it is too old."""
    executable = _locate()
    banner = await asyncio.to_thread(_banner, executable)
    version = _version(banner)
    if version is None:
        raise LocalStackError(f"{executable} -version says {banner!r}, which is no version; {REMEDY}")
    if version < MIN_VERSION:
        raise LocalStackError(f"Kafka needs Java {MIN_VERSION} or newer, but {executable} is Java {version}; {REMEDY}")
    return Java(executable, version, banner)


def _locate() -> Path:
    if home := os.environ.get("JAVA_HOME"):
        executable = Path(home) / "bin" / "java"
        if not executable.is_file():
            raise LocalStackError(
                f"JAVA_HOME is {home}, but there is no {executable}: correct or unset it, or {REMEDY}"
            )
        return executable
    found = shutil.which("java")
    if found is None:
        raise LocalStackError(f"Kafka needs Java {MIN_VERSION} or newer, and there is no `java` on PATH; {REMEDY}")
    return Path(found)


def _banner(executable: Path) -> str:
    try:
        ended = subprocess.run((executable, "-version"), capture_output=True, timeout=ANSWER_WITHIN_S, check=False)
    except OSError as error:
        raise LocalStackError(f"cannot run {executable}: {error.strerror}; {REMEDY}") from error
    except subprocess.TimeoutExpired:
        raise LocalStackError(f"{executable} -version does not answer; {REMEDY}") from None
    return (ended.stdout + ended.stderr).decode(errors="replace").strip()


def _version(banner: str) -> int | None:
    """Major version in `openjdk version "17.0.15" 2025-04-15`; of the old form "1.8.0_392" it is 8."""
    match = re.search(r'version "(?:1\.)?(\d+)', banner)
    return int(match[1]) if match else None
