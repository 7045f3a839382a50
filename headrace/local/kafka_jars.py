"""The jars of Apache Kafka: of an installation, else once by Maven into a cache that is whole or absent."""

import asyncio
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.local.files import make_folder, read_template, write_private
from headrace.local.java import REMEDY
from headrace.local.lock import OwnedLock
from headrace.local.process import Command, ManagedProcess
from headrace.local.settings import LocalKafkaSettings, Report
from schemas.codec import Codec
from schemas.errors import LocalStackError, MalformedRecord

KAFKA_VERSION = "4.4.0"

# Log4j 2 and `format --standalone` as we use them came with 4.0.
MIN_MAJOR_VERSION = 4

MARKER = "complete.json"
POLL_S = 0.2


class Marker(msgspec.Struct, frozen=True):
    """What a complete cache folder holds: the pom it was made from, and each jar's size in bytes."""

    pom_sha256: str
    jars: dict[str, int]


_MARKER: Codec[Marker] = Codec(Marker, "json")


@dataclass(frozen=True)
class KafkaJars:
    """A folder with all jars that a Kafka server needs."""

    folder: Path
    version: str

    @property
    def class_path(self) -> str:
        """For `java -cp`: each jar, in the same order every time (a class-data archive is bound to it)."""
        return ":".join(str(jar) for jar in sorted(self.folder.glob("*.jar")))


async def find_jars(settings: LocalKafkaSettings, report: Report) -> KafkaJars:
    """Jars of `kafka_home`, of the environment's KAFKA_HOME, or of the cache, which is filled if need be.

    Raises LocalStackError if the installation is not one, or if Maven is missing or cannot download.
    """
    home = settings.kafka_home or (Path(os.environ["KAFKA_HOME"]) if os.environ.get("KAFKA_HOME") else None)
    if home is not None:
        return _installed(home)
    folder = make_folder(settings.cache_dir) / f"kafka-{KAFKA_VERSION}"
    if not _is_complete(folder):
        await _fill_cache(folder, settings.download_timeout_s, report)
    return KafkaJars(folder, KAFKA_VERSION)


def _installed(home: Path) -> KafkaJars:
    folder = home / "libs"
    versions = [
        match[1] for jar in folder.glob("kafka_*.jar") if (match := re.search(r"-(\d+\.\d+\.\d+)\.jar$", jar.name))
    ]
    if not versions:
        raise LocalStackError(f"KAFKA_HOME is {home}, but {folder} holds no Kafka server: correct or unset KAFKA_HOME")
    if int(versions[0].split(".")[0]) < MIN_MAJOR_VERSION:
        raise LocalStackError(
            f"KAFKA_HOME is Kafka {versions[0]}; {MIN_MAJOR_VERSION}.0 or newer is needed, or unset it"
        )
    return KafkaJars(folder, versions[0])


def _pom_sha256() -> str:
    return hashlib.sha256(read_template("kafka_pom.xml").encode()).hexdigest()


def _is_complete(folder: Path) -> bool:
    try:
        marker = _MARKER.decode((folder / MARKER).read_bytes())
    except (FileNotFoundError, MalformedRecord):
        return False
    return marker.pom_sha256 == _pom_sha256() and marker.jars == _sizes(folder)


def _sizes(folder: Path) -> dict[str, int]:
    return {jar.name: jar.stat().st_size for jar in folder.glob("*.jar")}


async def _fill_cache(folder: Path, timeout_s: float, report: Report) -> None:
    lock = OwnedLock(folder.with_name(f"{folder.name}.lock"))
    while not lock.try_acquire():
        report(f"waiting for another process to download Kafka {KAFKA_VERSION}")
        await asyncio.sleep(POLL_S)
    try:
        if not _is_complete(folder):
            await _download(folder, timeout_s, report)
    finally:
        lock.release()


async def _download(folder: Path, timeout_s: float, report: Report) -> None:
    """Fill a folder beside the final one and rename it when it is whole. The caller holds the lock."""
    partial = folder.with_name(f"{folder.name}.partial")
    for stale in (partial, folder):
        if stale.exists():
            shutil.rmtree(stale)
    make_folder(partial)
    (partial / "pom.xml").write_text(read_template("kafka_pom.xml"), encoding="utf-8")
    await _run_maven(partial, timeout_s, report)
    jars = _sizes(partial)
    if not any(name.startswith("kafka_") for name in jars):
        raise LocalStackError(f"Maven ended well but left no Kafka in {partial}, see {partial}.log")
    write_private(partial / MARKER, msgspec.json.encode(Marker(_pom_sha256(), jars)))
    partial.replace(folder)


async def _run_maven(partial: Path, timeout_s: float, report: Report) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise LocalStackError(f"Kafka {KAFKA_VERSION} is downloaded by Maven, and there is no `mvn` on PATH; {REMEDY}")
    goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={partial}")
    command = Command(
        name="Maven",
        arguments=(maven, "-B", "-Dstyle.color=never", "-f", str(partial / "pom.xml"), *goal),
        log_path=partial.with_name(f"{partial.name}.log"),
        cwd=partial,
    )
    command.log_path.unlink(missing_ok=True)
    process = await ManagedProcess.start(command)
    try:
        async with asyncio.timeout(timeout_s):
            await _follow(process, report)
    except TimeoutError:
        raise LocalStackError(f"Maven did not finish within {timeout_s:g} s, see {command.log_path}") from None
    finally:
        await process.kill()
    if process.returncode != 0:
        raise LocalStackError(_explain(command.log_path))


async def _follow(process: ManagedProcess, report: Report) -> None:
    while process.returncode is None:
        num_files = process.command.log_path.read_text(errors="replace").count("Downloaded from")
        report(f"downloading Kafka {KAFKA_VERSION}" + (f" ({num_files} files)" if num_files else ""))
        await asyncio.sleep(POLL_S)


def _explain(log_path: Path) -> str:
    log = log_path.read_text(errors="replace")
    cause = re.search(r"^\[ERROR\] (.+?)(?: -> \[Help 1\])?$", log, re.MULTILINE)
    return (
        f"Maven could not download Kafka {KAFKA_VERSION}: {cause[1] if cause else 'no reason given'}. "
        f"The whole story is in {log_path}. Without a network, set KAFKA_HOME to an unpacked Apache Kafka, "
        "or run Kafka in a container: docker compose up"
    )
