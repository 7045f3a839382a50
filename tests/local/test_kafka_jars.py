"""Kafka's jars are whole or absent, and whatever is missing to get them is named with its remedy."""

import asyncio
import hashlib
import json
import shutil
from pathlib import Path

import msgspec
import pytest

from headrace.local.files import read_template
from headrace.local.java import find_java
from headrace.local.kafka_jars import KAFKA_VERSION, MARKER, Marker, find_jars
from headrace.local.settings import LocalKafkaSettings, ignore_report
from schemas.errors import LocalStackError
from tests.local.processes import first_line, python

JARS = {"kafka_2.13-4.4.0.jar": b"server", "kafka-clients-4.4.0.jar": b"clients"}

needs_maven = pytest.mark.skipif(shutil.which("mvn") is None, reason="needs Maven; KAFKA_HOME may replace it")

FINDER = """
import asyncio, sys
from pathlib import Path
from headrace.local.kafka_jars import find_jars
from headrace.local.settings import LocalKafkaSettings
root, told = Path(sys.argv[1]), []
found = asyncio.run(find_jars(LocalKafkaSettings(data_dir=root / "data", cache_dir=root / "cache"), told.append))
print(found.class_path, "downloading" in " ".join(told))
"""


@pytest.fixture(autouse=True)
def no_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_HOME", raising=False)


@pytest.fixture
def no_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty PATH; the folder is returned, to put programs into."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return folder


@pytest.fixture
def settings(tmp_path: Path) -> LocalKafkaSettings:
    return LocalKafkaSettings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache", download_timeout_s=60)


@pytest.fixture
def cache(settings: LocalKafkaSettings) -> Path:
    """A complete cache, of jars that are small."""
    folder = settings.cache_dir / f"kafka-{KAFKA_VERSION}"
    folder.mkdir(parents=True)
    for name, content in JARS.items():
        (folder / name).write_bytes(content)
    pom = hashlib.sha256(read_template("kafka_pom.xml").encode()).hexdigest()
    sizes = {name: len(content) for name, content in JARS.items()}
    (folder / MARKER).write_bytes(msgspec.json.encode(Marker(pom, sizes)))
    return folder


@pytest.mark.usefixtures("no_programs")
async def test_a_complete_cache_is_used_without_maven(settings: LocalKafkaSettings, cache: Path) -> None:
    jars = await find_jars(settings, ignore_report)
    assert jars.version == KAFKA_VERSION
    assert jars.class_path.split(":") == sorted(str(cache / name) for name in JARS)


def lose_a_jar(folder: Path) -> None:
    (folder / "kafka-clients-4.4.0.jar").unlink()


def truncate_a_jar(folder: Path) -> None:
    (folder / "kafka-clients-4.4.0.jar").write_bytes(b"clie")


def add_a_jar(folder: Path) -> None:
    (folder / "kafka-clients-4.3.0.jar").write_bytes(b"older")


def lose_the_marker(folder: Path) -> None:
    (folder / MARKER).unlink()


def truncate_the_marker(folder: Path) -> None:
    (folder / MARKER).write_bytes((folder / MARKER).read_bytes()[:20])


def mark_another_pom(folder: Path) -> None:
    marker = json.loads((folder / MARKER).read_text())
    (folder / MARKER).write_text(json.dumps({**marker, "pom_sha256": "0" * 64}))


@pytest.mark.usefixtures("no_programs")
@pytest.mark.parametrize(
    "damage",
    [lose_a_jar, truncate_a_jar, add_a_jar, lose_the_marker, truncate_the_marker, mark_another_pom],
    ids=lambda damage: damage.__name__,
)
async def test_a_cache_that_is_not_whole_is_never_used(damage, settings: LocalKafkaSettings, cache: Path) -> None:  # type: ignore[no-untyped-def] # a function of the list above
    damage(cache)
    with pytest.raises(LocalStackError, match="mvn"):  # it is filled anew, which needs Maven
        await find_jars(settings, ignore_report)
    assert not (settings.cache_dir / cache.name).exists()


@pytest.mark.usefixtures("no_programs")
async def test_missing_maven_is_named_with_its_package(settings: LocalKafkaSettings) -> None:
    with pytest.raises(LocalStackError, match=r"no `mvn` on PATH.*apt-get install .*maven.*docker compose up"):
        await find_jars(settings, ignore_report)


@pytest.mark.usefixtures("no_programs")
async def test_missing_java_is_named_with_its_package() -> None:
    with pytest.raises(LocalStackError, match=r"no `java` on PATH.*apt-get install default-jdk-headless maven"):
        await find_java()


@pytest.mark.parametrize(
    ("banner", "message"),
    [
        ('openjdk version "11.0.24" 2024-07-16', r"is Java 11; install a JDK"),
        ('java version "1.8.0_392"', r"is Java 8; install a JDK"),
        ("Error: could not open jvm.cfg", "which is no version"),
    ],
)
async def test_a_java_that_will_not_do_is_refused(banner: str, message: str, no_programs: Path) -> None:
    """A script says what an old Java says: that one cannot be installed beside the one that Kafka needs."""
    fake = no_programs / "java"
    fake.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    fake.chmod(0o755)
    with pytest.raises(LocalStackError, match=message):
        await find_java()


async def test_a_java_home_without_java_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(LocalStackError, match=f"JAVA_HOME is {tmp_path}"):
        await find_java()


@pytest.mark.parametrize(
    ("jar", "message"),
    [
        ("kafka_2.13-3.9.1.jar", "is Kafka 3.9.1; 4.0 or newer"),
        ("kafka-clients-4.4.0.jar", "holds no Kafka server"),
        (None, "holds no Kafka server"),
    ],
)
async def test_a_kafka_home_that_will_not_do_is_refused(
    jar: str | None, message: str, tmp_path: Path, settings: LocalKafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    if jar is not None:
        (tmp_path / "libs").mkdir()
        (tmp_path / "libs" / jar).write_bytes(b"")
    with pytest.raises(LocalStackError, match=message):
        await find_jars(settings, ignore_report)


@pytest.mark.parametrize("where", ["setting", "environment"])
@pytest.mark.usefixtures("no_programs")
async def test_kafka_home_is_used_as_it_is(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libs = tmp_path / "kafka" / "libs"
    libs.mkdir(parents=True)
    (libs / "kafka_2.13-4.1.2.jar").write_bytes(b"")
    home = tmp_path / "kafka" if where == "setting" else None
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path / ("wrong" if home else "kafka")))
    settings = LocalKafkaSettings(data_dir=tmp_path / "data", cache_dir=tmp_path / "cache", kafka_home=home)
    jars = await find_jars(settings, ignore_report)
    assert (jars.version, jars.folder) == ("4.1.2", libs)


@pytest.mark.integration
@needs_maven
async def test_maven_without_a_network_says_so_and_leaves_no_cache(
    tmp_path: Path, settings: LocalKafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real Maven, with every repository mirrored to a port of this machine where nobody listens."""
    (tmp_path / ".m2").mkdir()
    mirror = "<mirror><id>m</id><mirrorOf>*</mirrorOf><url>http://127.0.0.1:9/</url></mirror>"
    (tmp_path / ".m2" / "settings.xml").write_text(f"<settings><mirrors>{mirror}</mirrors></settings>")
    monkeypatch.setenv("MAVEN_OPTS", f"-Duser.home={tmp_path}")
    with pytest.raises(LocalStackError, match=r"could not download Kafka 4.4.0: .*127.0.0.1.*KAFKA_HOME"):
        await find_jars(settings, ignore_report)
    assert not (settings.cache_dir / f"kafka-{KAFKA_VERSION}").exists()


@pytest.mark.integration
@needs_maven
async def test_two_processes_at_once_fill_one_cache_once(tmp_path: Path) -> None:
    finders = [python(FINDER, str(tmp_path)) for _ in range(2)]
    lines = [(await asyncio.to_thread(first_line, finder)).rpartition(" ") for finder in finders]
    for finder in finders:
        finder.communicate()
    assert [finder.returncode for finder in finders] == [0, 0]
    assert lines[0][0] == lines[1][0]
    assert f"{tmp_path}/cache/kafka-{KAFKA_VERSION}/kafka_2.13-{KAFKA_VERSION}.jar" in lines[0][0]
    assert sorted(line[2] for line in lines) == ["False", "True"]
