"""A class archive is kept from a run that ended in good order, and only fits the Java and the jars it was made with."""

import os
from pathlib import Path

import pytest

from headrace.local.class_archive import ClassArchive
from headrace.local.java import Java
from headrace.local.kafka_jars import KafkaJars

JAVA = Java(Path("/usr/bin/java"), 17, 'openjdk version "17.0.15"')


@pytest.fixture
def jars(tmp_path: Path) -> KafkaJars:
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "kafka_2.13-4.4.0.jar").write_bytes(b"")
    return KafkaJars(tmp_path / "libs", "4.4.0")


def written_to(archive: ClassArchive) -> Path:
    """Where a run that makes the archive writes it."""
    return Path(archive.using_or_writing_flags[0].removeprefix("-XX:ArchiveClassesAtExit="))


@pytest.mark.parametrize("returncode", [0, 143])
def test_the_archive_of_an_orderly_run_is_used_by_the_next(returncode: int, tmp_path: Path, jars: KafkaJars) -> None:
    first = ClassArchive(tmp_path, JAVA, jars)
    assert first.using_flags == ()
    written_to(first).write_bytes(b"classes")
    first.keep(returncode)
    second = ClassArchive(tmp_path, JAVA, jars)
    assert second.using_flags == second.using_or_writing_flags == (f"-XX:SharedArchiveFile={second.path}",)
    assert second.path.read_bytes() == b"classes"


@pytest.mark.parametrize("returncode", [-9, 1, 3])
def test_the_archive_of_a_run_that_failed_is_thrown_away(returncode: int, tmp_path: Path, jars: KafkaJars) -> None:
    archive = ClassArchive(tmp_path, JAVA, jars)
    written_to(archive).write_bytes(b"half of the cla")
    archive.keep(returncode)
    assert list(archive.path.parent.iterdir()) == []


def test_another_java_or_other_jars_need_another_archive(tmp_path: Path, jars: KafkaJars) -> None:
    path = ClassArchive(tmp_path, JAVA, jars).path
    newer = Java(JAVA.executable, 17, 'openjdk version "17.0.16"')
    assert ClassArchive(tmp_path, newer, jars).path != path
    (jars.folder / "extra.jar").write_bytes(b"")
    assert ClassArchive(tmp_path, JAVA, jars).path != path


def test_two_brokers_of_one_process_do_not_write_one_file(tmp_path: Path, jars: KafkaJars) -> None:
    assert written_to(ClassArchive(tmp_path, JAVA, jars)) != written_to(ClassArchive(tmp_path, JAVA, jars))


def test_what_killed_processes_left_is_removed_and_what_others_write_is_not(tmp_path: Path, jars: KafkaJars) -> None:
    archive = ClassArchive(tmp_path, JAVA, jars)
    highest_pid = int(Path("/proc/sys/kernel/pid_max").read_text())
    dead = archive.path.with_name(f"{archive.path.name}.{highest_pid + 1}.abcd")
    other = archive.path.with_name(f"{archive.path.name}.{os.getppid()}.abcd")
    dead.write_bytes(b"")
    other.write_bytes(b"")
    archive.keep(-9)
    assert [entry.name for entry in archive.path.parent.iterdir()] == [other.name]
