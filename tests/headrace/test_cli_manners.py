"""The manners of the command line: it completes words, and colours nothing that nobody sees."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HEADRACE = Path(sys.executable).with_name("headrace")


def headrace(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "_HEADRACE"))}
    return subprocess.run(
        [HEADRACE, *words], env={**clean, **env}, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize(
    ("typed", "offered"), [("headrace ca", {"cancel"}), ("headrace serve ", {"gate", "pipeline", "worker"})]
)
def test_a_shell_completes_verbs(typed: str, offered: set[str]) -> None:
    position = str(len(typed.split(" ")) - 1)
    done = headrace(_HEADRACE_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=position)
    assert set(done.stdout.split()) == offered


def test_an_error_is_one_line_without_colours_where_it_is_piped(tmp_path: Path) -> None:
    done = headrace("cancel", "x", "--set", "kafka.bootstrap_servers=127.0.0.1:1", XDG_CONFIG_HOME=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: Kafka at 127.0.0.1:1 does not answer")
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    "words", ["config show", "chat ''", "tail x --since 10m --set kafka.bootstrap_servers=127.0.0.1:1"]
)
def test_a_stream_that_the_caller_has_closed_is_no_fault(words: str, closed: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{HEADRACE} {words} {closed}"], capture_output=True, text=True, check=False, timeout=60
    )
    assert "a fault of headrace" not in done.stderr
    assert done.returncode == {"config": 0, "chat": 2, "tail": 1}[words.split()[0]]


def test_a_full_disk_is_named_and_is_no_fault_of_ours() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([HEADRACE, "version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: No space left on device\n")


@pytest.mark.parametrize("since", ["99999999999999999d", "9" * 400 + "s", "99999999d"])
def test_a_time_that_no_calendar_has_is_wrong_usage(since: str) -> None:
    done = headrace("tail", "x", "--since", since)
    assert (done.returncode, "is neither a time" in done.stderr) == (2, True)


def test_a_schema_that_nests_too_deeply_is_wrong_usage(tmp_path: Path) -> None:
    file = tmp_path / "deep.json"
    file.write_text("[" * 100_000)
    done = headrace("chat", "hi", "--json-schema", str(file))
    assert (done.returncode, "a fault of headrace" in done.stderr) == (2, False)


@pytest.mark.parametrize("verb", ["chat", "generate", "tail", "cancel", "bench engine", "doctor", "up", "demo"])
def test_help_fits_a_narrow_terminal_and_cuts_no_name_of_an_option(verb: str) -> None:
    shown = headrace(*verb.split(), "--help", COLUMNS="80").stdout
    assert "--help" in shown
    assert "…" not in shown.replace("N,…", "").replace("TOKENS,…", "")


def test_a_setting_is_found_on_a_pipe_by_its_name(tmp_path: Path) -> None:
    shown = headrace("config", "show", XDG_DATA_HOME=str(tmp_path), COLUMNS="60").stdout
    names = [line.split()[0] for line in shown.splitlines() if line.startswith(" ") and line.strip()]
    assert {"models.smollm2-135m-instruct.context_length", "kafka.transaction_timeout_ms"} <= set(names)


def test_what_is_wrong_in_a_field_is_told_with_its_place(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"age": {"not": {"type": "string"}}}}')
    done = headrace("generate", "x", "--json-schema", str(schema))
    assert (done.returncode, done.stdout) == (2, "")
    assert "response_format.json_schema.schema.properties.age.not" in done.stderr
