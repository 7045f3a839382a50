"""`headrace doctor` without a broker: how checks are run, what each makes of what it sees, and the command itself."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.main import main
from headrace.doctor import NAMES, Check, Finding, cgroup, examine, find, find_all
from headrace.doctor.base import failed, ok
from headrace.doctor.commands import Answer, ask
from headrace.doctor.examination import without_secrets
from headrace.doctor.gpu import judge as judge_gpu
from headrace.doctor.machine import cpu, disk, memory_free_bytes, memory_needed_bytes
from headrace.doctor.settings import judge as judge_settings
from headrace.doctor.situation import Situation
from headrace.doctor.threads import new_event_loop
from headrace.local.identity import ProcessIdentity
from headrace.local.kafka_jars import KAFKA_VERSION, MARKER
from runtime.config import load_settings
from schemas.errors import BrokerUnavailable

BROKER_SET = "kafka.bootstrap_servers=127.0.0.1:1"


@pytest.fixture(autouse=True)
def a_machine_without_headrace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings, no running stack, no programs but those that a test installs."""
    for name in [name for name in os.environ if name.startswith("HEADRACE_")] + ["JAVA_HOME", "KAFKA_HOME", "CXX"]:
        monkeypatch.delenv(name, raising=False)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(tmp_path)


def install(folder: Path, name: str, text: str, code: int = 0) -> None:
    """A program that says something and ends."""
    path = folder / "bin" / name
    path.write_text(f"#!/bin/sh\necho '{text}'\nexit {code}\n")
    path.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """All programs that are looked for, save a GPU's."""
    install(tmp_path, "java", 'openjdk version "21.0.1" 2023-10-17')
    install(tmp_path, "mvn", "\x1b[1mApache Maven 3.9.9\x1b[m")
    install(tmp_path, "g++", "g++ (Debian) 12.2.0")
    return tmp_path


def situation(*overrides: str, is_dev: bool = False) -> Situation:
    return Situation(load_settings(None, {}, overrides), is_dev)


async def examined(*overrides: str, is_dev: bool = False) -> dict[str, Finding]:
    return {finding.name: finding for finding in await examine(None, overrides, is_dev=is_dev)}


# How checks are run


def check(examine: Callable[[], Awaitable[Any]], limit_s: float = 10.0) -> Check:
    return Check("thing", examine, "mend it", limit_s)


@pytest.mark.parametrize(
    ("error", "message"),
    [(BrokerUnavailable("it is away"), "it is away"), (ValueError("inside"), "ValueError: inside")],
)
async def test_a_check_that_breaks_is_a_failure_with_the_remedy_and_hides_no_other(
    error: Exception, message: str
) -> None:
    async def breaks() -> Finding:
        raise error

    async def works() -> list[Finding]:
        return [ok("a", "1"), ok("b", "2")]

    assert await find_all([check(breaks), check(works)]) == [
        failed("thing", message, "mend it"),
        ok("a", "1"),
        ok("b", "2"),
    ]


async def test_a_check_without_end_is_cancelled_at_its_limit() -> None:
    cancelled = asyncio.Event()

    async def hangs() -> Finding:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    assert await find(check(hangs, 0.01)) == [failed("thing", "no answer within 0.01 s", "mend it")]
    assert cancelled.is_set()


async def test_a_check_that_will_not_be_cancelled_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.doctor.base._GRACE_S", 0.01)
    release = asyncio.Event()

    async def resists() -> Finding:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return ok("thing", "late")

    assert await find(check(resists, 0.01)) == [failed("thing", "no answer within 0.01 s", "mend it")]
    release.set()


async def test_whoever_waits_for_a_check_can_be_cancelled_and_the_check_is_too() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def hangs() -> Finding:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    task = asyncio.create_task(find(check(hangs)))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(cancelled.wait(), 10)


def test_a_thread_that_hangs_does_not_hold_up_the_end() -> None:
    release = threading.Event()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            found = runner.run(find(check(lambda: asyncio.to_thread(release.wait), 0.01)))
        assert found[0].found == "no answer within 0.01 s"
    finally:
        release.set()


def test_a_thread_s_result_and_its_error_come_back() -> None:
    def fails() -> None:
        raise ValueError("inside")

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        assert runner.run(asyncio.to_thread(lambda: 7)) == 7
        with pytest.raises(ValueError, match="inside"):
            runner.run(asyncio.to_thread(fails))


@pytest.mark.parametrize("when", ["while it starts", "while it runs"])
async def test_a_program_that_is_not_waited_for_dies_with_all_that_it_started(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids, started = tmp_path / "pids", asyncio.Event()
    start = asyncio.create_subprocess_exec

    async def start_slowly(*command: str, **options: Any) -> Any:
        process = await start(*command, **options)
        await until(pids.exists)
        started.set()
        if when == "while it starts":
            await asyncio.sleep(0)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start_slowly)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    task = asyncio.create_task(ask("sh", "-c", f"sleep 600 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait"))
    await started.wait()
    for _ in range(10 if when == "while it runs" else 0):
        await asyncio.sleep(0)  # a turn of the loop
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not any(ProcessIdentity.of(int(pid)) for pid in pids.read_text().split()))


async def until(holds: Callable[[], bool]) -> None:
    """Wait for what other processes do."""
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 (other processes send no event)
            await asyncio.sleep(0.01)


async def test_a_program_s_answer_has_its_code_and_no_colours(tools: Path) -> None:
    install(tools, "fails", "\n\x1b[31mno such thing\x1b[0m", code=3)
    answer = await ask(str(tools / "bin" / "fails"))
    assert (answer.returncode, answer.first_line) == (3, "no such thing")


# Tools


async def test_tools_that_are_there_are_named_with_their_versions(tools: Path) -> None:
    found = await examined()
    assert found["Java"].found == f"21 ({tools}/bin/java); Kafka needs 17"
    assert found["Maven"].found == f"Apache Maven 3.9.9 ({tools}/bin/mvn)"
    assert found["C++ compiler"].found == f"g++ (Debian) 12.2.0 ({tools}/bin/g++)"
    assert {found[name].status for name in ("Python", "Java", "Maven", "C++ compiler")} == {"ok"}


async def test_without_tools_no_local_kafka_can_run_and_the_remedy_names_the_packages() -> None:
    found = await examined()
    for name in ("Java", "Maven"):
        assert found[name].status == "failed"
        assert "apt-get install default-jdk-headless maven" in str(found[name].remedy)
        assert "apt-get" not in found[name].found
    assert found["C++ compiler"].status == "warning"


async def test_an_old_java_is_a_failure(tools: Path) -> None:
    install(tools, "java", 'java version "1.8.0_392"')
    found = (await examined())["Java"]
    assert found.status == "failed"
    assert "is Java 8" in found.found


async def test_with_a_broker_of_one_s_own_java_and_maven_are_not_needed() -> None:
    found = await examined(BROKER_SET)
    assert found["Java"].status == found["Maven"].status == "skipped"


async def test_maven_is_not_needed_once_kafka_is_downloaded(tmp_path: Path) -> None:
    marker = tmp_path / "cache" / f"kafka-{KAFKA_VERSION}" / MARKER
    marker.parent.mkdir(parents=True)
    marker.touch()
    assert (await examined(f"local.cache_dir={tmp_path / 'cache'}"))["Maven"].status == "skipped"


async def test_tools_that_fail_are_not_taken_for_tools_that_work(tools: Path) -> None:
    install(tools, "mvn", "JAVA_HOME is not right", code=1)
    install(tools, "g++", "cannot execute", code=1)
    found = await examined()
    assert (found["Maven"].status, found["C++ compiler"].status) == ("failed", "warning")
    assert "JAVA_HOME is not right" in found["Maven"].found


# The machine


@pytest.mark.parametrize(
    ("flags", "machine", "status", "text"),
    [
        ({"avx2", "avx512f", "fpu"}, "x86_64", "ok", "with avx2, avx512f; without avx512_bf16, amx_bf16"),
        ({"avx2", "avx512f", "avx512_bf16", "amx_bf16"}, "x86_64", "ok", "x86_64 with avx2"),
        ({"sse2"}, "x86_64", "warning", "without avx2"),
        ({"asimd", "bf16"}, "aarch64", "ok", "aarch64"),
    ],
)
def test_a_processor_is_judged_by_what_the_engine_uses(flags: set[str], machine: str, status: str, text: str) -> None:
    finding = cpu(frozenset(flags), machine)
    assert finding.status == status
    assert text in finding.found


def group(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


@pytest.mark.parametrize(
    ("own", "groups", "cores"),
    [
        ("0::/", {"": {"cpu.max": "150000 100000"}}, 1.5),
        ("0::/", {"": {"cpu.max": "max 100000"}}, None),
        ("0::/a/b", {"a": {"cpu.max": "200000 100000"}, "a/b": {"cpu.max": "max 100000"}}, 2.0),
        ("4:cpu,cpuacct:/a", {"cpu/a": {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}}, 0.5),
        ("4:cpu,cpuacct:/a", {"cpu": {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}}, None),
        ("", {}, None),
    ],
)
def test_the_quota_of_a_container_limits_the_cores(
    own: str, groups: dict[str, dict[str, str]], cores: float | None, tmp_path: Path
) -> None:
    for name, files in groups.items():
        group(tmp_path / "root" / name, files)
    (tmp_path / "own").write_text(own)
    assert cgroup.quota_cores(tmp_path / "root", tmp_path / "own") == cores


@pytest.mark.parametrize(
    ("own", "groups", "left"),
    [
        ("0::/a", {"a": {"memory.max": "1000", "memory.current": "400"}}, 600),
        ("0::/a", {"a": {"memory.max": "max", "memory.current": "400"}}, None),
        ("0::/a/b", {"a": {"memory.max": "9", "memory.current": "99"}, "a/b": {"memory.max": "max"}}, 0),
        (
            "5:memory:/a",
            {"memory/a": {"memory.limit_in_bytes": str((1 << 63) - 4096), "memory.usage_in_bytes": "5"}},
            None,
        ),
        ("5:memory:/a", {"memory/a": {"memory.limit_in_bytes": "50", "memory.usage_in_bytes": "20"}}, 30),
    ],
)
def test_the_limit_of_a_container_limits_the_memory(
    own: str, groups: dict[str, dict[str, str]], left: int | None, tmp_path: Path
) -> None:
    for name, files in groups.items():
        group(tmp_path / "root" / name, files)
    (tmp_path / "own").write_text(own)
    assert cgroup.memory_left_bytes(tmp_path / "root", tmp_path / "own") == left


def test_free_memory_is_what_linux_calls_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "memory_left_bytes", lambda: None)
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:      7 kB\n")
    assert memory_free_bytes(tmp_path / "meminfo") == 7 * 1024
    monkeypatch.setattr(cgroup, "memory_left_bytes", lambda: 5)
    assert memory_free_bytes(tmp_path / "meminfo") == 5


async def test_more_kv_than_there_is_memory_is_warned_of() -> None:
    assert memory_needed_bytes(situation("engine.kv_bytes=1000")) < memory_needed_bytes(situation())
    found = (await examined(f"engine.kv_bytes={1 << 60}"))["memory"]
    assert found.status == "warning"
    assert "engine.kv_bytes" in str(found.remedy)


def test_a_folder_that_does_not_exist_yet_is_judged_by_its_disk(tmp_path: Path) -> None:
    finding = disk("disk", tmp_path / "a" / "b", (0, 0), "local.data_dir")
    assert finding.status == "ok"
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(("thresholds", "status"), [((0, 1 << 60), "warning"), ((1 << 60, 1 << 60), "failed")])
def test_a_full_disk_is_told_before_it_is_full(thresholds: tuple[int, int], status: str, tmp_path: Path) -> None:
    finding = disk("disk", tmp_path, thresholds, "local.data_dir")
    assert finding.status == status
    assert "local.data_dir" in str(finding.remedy)


def test_a_file_where_the_folder_should_be_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "is no folder" in disk("disk", tmp_path / "file" / "data", (0, 0), "local.data_dir").found


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    assert "may not be written" in disk("disk", tmp_path / "closed" / "data", (0, 0), "local.data_dir").found


@pytest.mark.parametrize(
    ("answer", "status", "text"),
    [
        (Answer(0, "NVIDIA H200, 580.65.06, 143771, 9.0\n"), "ok", "NVIDIA H200 (143771 MiB, compute 9.0); driver 580"),
        (Answer(0, "A, 590.1, 1, 9.0\nB, 590.1, 2, 9.0\n"), "ok", "A (1 MiB, compute 9.0); B (2 MiB, compute 9.0)"),
        (Answer(0, "NVIDIA A100, 535.104, 40960, 8.0\n"), "warning", "older than CUDA 13 needs"),
        (Answer(0, ""), "warning", "it says nothing"),
        (Answer(0, "No devices were found\n"), "warning", "No devices were found"),
        (Answer(9, "NVIDIA-SMI has failed because\n"), "warning", "NVIDIA-SMI has failed"),
    ],
)
def test_a_gpu_is_judged_by_its_driver(answer: Answer, status: str, text: str) -> None:
    finding = judge_gpu(answer)
    assert finding.status == status
    assert text in finding.found


async def test_no_gpu_is_no_fault_and_one_that_is_there_is_found(tools: Path) -> None:
    assert (await examined())["GPU"].status == "ok"
    install(tools, "nvidia-smi", "NVIDIA H200, 580.65.06, 143771, 9.0")
    assert "NVIDIA H200" in (await examined())["GPU"].found


# Settings and secrets


@pytest.mark.parametrize(
    ("overrides", "status", "text"),
    [
        ([], "ok", "all are the defaults"),
        (["kafka.ssl_cafile=nowhere.pem"], "failed", "there is no file nowhere.pem"),
        (["kafka.security_protocol=SASL_SSL"], "failed", "no user or password"),
        (
            [
                *("kafka.security_protocol=SASL_PLAINTEXT", "kafka.sasl_mechanism=PLAIN"),
                *("kafka.sasl_username=me", "kafka.sasl_password=hunter2"),
            ],
            "warning",
            "unencrypted",
        ),
        (["storage.endpoint=s3.example.com:9000"], "warning", "unencrypted"),
        (["storage.endpoint=127.0.0.1:9000"], "ok", "--set storage.endpoint"),
    ],
)
def test_settings_are_judged_by_what_they_would_do(overrides: list[str], status: str, text: str) -> None:
    finding = judge_settings(load_settings(None, {}, overrides))
    assert finding.status == status
    assert text in finding.found


# A message may be anything, and so may a secret; the mask's own character would only blur what is asked.
TEXT = st.characters(exclude_characters="*")


@given(st.lists(st.text(TEXT, min_size=1, max_size=8), min_size=1, max_size=3), st.text(TEXT), st.text(TEXT))
def test_no_secret_is_shown_whatever_a_message_quotes(secrets: list[str], before: str, after: str) -> None:
    text = before.join(secrets) + after
    (finding,) = without_secrets([failed("x", text, text)], secrets)
    for secret in secrets:
        assert secret not in finding.found
        assert secret not in str(finding.remedy)


def test_every_secret_setting_counts_as_one() -> None:
    names = ("kafka.sasl_password", "storage.access_key", "storage.secret_key")
    assert set(situation(*(f"{name}=of-{name}" for name in names)).secrets) == {f"of-{name}" for name in names}


# The command


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["doctor", *words])
    out, err = capsys.readouterr()
    assert err == ""
    return code, out


def test_without_a_broker_all_else_is_checked_and_the_exit_code_is_0(
    tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = run(["--json"], capsys)
    findings = msgspec.json.decode(out, type=list[Finding])
    assert [finding.name for finding in findings] == list(NAMES)
    assert code == 0
    by_name = {finding.name: finding for finding in findings}
    assert by_name["topics"].status == "skipped"
    assert by_name["topics"].found == "no broker set or running"
    assert by_name["S3 conditional put"].found == "no object storage set or running"


def test_a_failure_makes_the_exit_code_1_and_is_shown_with_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run([], capsys)
    assert code == 1
    assert "→ install a JDK and Maven" in out
    assert "2 failed" in out
    assert "\x1b" not in out


def test_settings_that_cannot_be_read_are_a_finding_and_this_machine_is_still_checked(
    tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = run(["--set", "kafka.bootstrap_server=x", "--json"], capsys)
    found = {finding["name"]: finding for finding in json.loads(out)}
    assert code == 1
    assert "did you mean kafka.bootstrap_servers?" in found["settings"]["found"]
    assert found["broker"]["found"] == "the settings cannot be read"
    assert found["Java"]["status"] == "ok"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["kafka.bootstrap_servers=127.0.0.1:1"], "127.0.0.1:1: connection refused"),
        (["kafka.bootstrap_servers=127.0.0.1:1,http://x:2"], "write HOST:PORT"),
        (["kafka.bootstrap_servers= , "], "no address"),
        (["storage.endpoint=127.0.0.1:1"], "127.0.0.1:1: connection refused"),
        (["storage.endpoint=http://127.0.0.1:1"], "write HOST:PORT"),
    ],
)
def test_what_is_away_or_misspelt_fails_once_and_the_rest_of_it_is_skipped(
    words: list[str], text: str, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = run([*(part for word in words for part in ("--set", word)), "--json"], capsys)
    bad = [finding for finding in json.loads(out) if finding["status"] == "failed"]
    assert code == 1
    assert len(bad) == 1
    assert text in bad[0]["found"]
    assert bad[0]["remedy"]


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_servers_that_are_something_else_hang_nothing(
    greeting: bytes, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Stranger(greeting)) as stranger:
        code, out = run(
            [
                *("--set", f"kafka.bootstrap_servers={stranger.address}", "--set", "kafka.request_timeout_ms=200"),
                *("--set", f"storage.endpoint={stranger.address}", "--set", "storage.timeout_s=0.2"),
                *("--set", "storage.access_key=hunter2", "--set", "storage.secret_key=hunter3", "--json"),
            ],
            capsys,
        )
    found = {finding["name"]: finding for finding in json.loads(out)}
    assert code == 1
    assert found["broker"]["status"] == found["object storage"]["status"] == "failed"
    assert found["topics"]["status"] == found["S3 conditional put"]["status"] == "skipped"
    assert "hunter" not in out


class Stranger:
    """A server that takes connections, says its line to each, and nothing more."""

    def __init__(self, greeting: bytes) -> None:
        self._greeting = greeting
        self._loop = asyncio.new_event_loop()
        self._writers: list[asyncio.StreamWriter] = []
        self._server = self._loop.run_until_complete(asyncio.start_server(self._greet, "127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    async def _greet(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        writer.write(self._greeting)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._server.close()
        for writer in self._writers:
            writer.close()
        self._loop.run_until_complete(self._server.wait_closed())
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


def test_the_examination_needs_neither_torch_nor_faust() -> None:
    script = (
        "import sys; import headrace.doctor, headrace.cli.doctor; "
        "print([name for name in ('torch', 'faust', 'numpy', 'tokenizers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
