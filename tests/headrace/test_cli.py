"""The command line without a broker: help, exit codes, settings, errors as one line."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from headrace import __version__
from headrace.cli.main import app, main
from headrace.cli.speaker import printable
from headrace.cli.tail import parse_since
from tests.tied import tied


@pytest.fixture(autouse=True)
def a_machine_without_headrace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings, no running stack, no colours; what `--debug` sets is taken back."""
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    yield
    os.environ.pop("HEADRACE_DEBUG", None)


def commands() -> list[list[str]]:
    """Every command, as the words that call it."""

    def walk(command: object, words: list[str]) -> Iterator[list[str]]:
        yield words
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, [*words, name])

    return list(walk(get_command(app), []))


LEAVES = [words for words in commands() if words and words not in (["serve"], ["topics"], ["config"], ["bench"])]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_has_help(words: list[str]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"])
    assert result.exit_code == 0
    assert f"Usage: headrace {' '.join(words)}".strip() in result.output.replace("Usage: root", "Usage: headrace")


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_command_shows_an_example(words: list[str]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"])
    help_text = result.output.split("Options")[0]
    assert f"headrace {' '.join(words)}" in help_text.split("\n", 3)[3], result.output


def test_the_verbs_are_the_ones_that_are_documented() -> None:
    assert {" ".join(words) for words in LEAVES} == {
        *("demo", "up", "chat", "tail", "cancel", "doctor", "version", "config show", "topics create", "topics list"),
        *("serve gate", "serve pipeline", "serve worker", "generate", "bench engine"),
    }


@pytest.mark.parametrize("words", [["nonsense"], ["chat", "--nonsense"], ["topics", "drop"], ["tail"]])
def test_wrong_usage_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "Usage:" in capsys.readouterr().err


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["headrace"] == __version__


@pytest.mark.parametrize(
    "words", [["chat", "hi"], ["tail", "x"], ["cancel", "x"], ["topics", "list"], ["topics", "create"]]
)
def test_without_a_broker_a_command_ends_with_2_and_one_line_that_helps(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("error: no broker: set kafka.bootstrap_servers")
    assert "headrace up" in err


@pytest.mark.parametrize("words", [["chat", "hi"], ["tail", "x"], ["topics", "list"], ["topics", "create"]])
def test_a_broker_that_is_away_ends_a_command_with_1_and_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--set", "kafka.bootstrap_servers=127.0.0.1:1"]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("error: Kafka at 127.0.0.1:1 does not answer")


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "list", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_a_fault_of_ours_is_one_line_as_well(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_it(*_: object) -> None:
        raise ValueError("inside")

    monkeypatch.setattr("headrace.cli.topics.load", break_it)
    assert main(["topics", "list"]) == 1
    assert capsys.readouterr().err == "error: ValueError: inside (a fault of headrace; --debug shows where)\n"


def test_an_interrupted_command_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.cli.topics.load", interrupt)
    assert main(["topics", "list"]) == 130


def test_config_show_names_value_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    Path("headrace.toml").write_text("[topics]\npartitions = 3\n")
    assert main(["config", "show", "--set", "storage.secret_key=hunter2", "--json"]) == 0
    out = capsys.readouterr().out
    lines = {line["name"]: line for line in json.loads(out)}
    assert lines["topics.partitions"] == {"name": "topics.partitions", "value": 3, "source": "file headrace.toml"}
    assert lines["storage.secret_key"]["value"] == "********"
    assert "hunter2" not in out


def test_config_show_is_a_table_for_people_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--set", "storage.secret_key=hunter2"]) == 0
    out = capsys.readouterr().out
    assert "********" in out
    assert "hunter2" not in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "kafka.bootstrap_server=x"], "did you mean kafka.bootstrap_servers?"),
        (["--set", "nonsense"], "write section.key=value"),
        (["--config", "nowhere.toml"], "there is no settings file nowhere.toml"),
    ],
)
def test_wrong_settings_end_with_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", *words]) == 2
    assert message in capsys.readouterr().err


def test_up_refuses_to_start_a_second_broker_beside_a_configured_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--set", "kafka.bootstrap_servers=host:9092"]) == 2
    assert "kafka.bootstrap_servers is set (--set kafka.bootstrap_servers)" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "  \n"])
def test_asking_nothing_is_wrong_usage(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", text]) == 2
    assert "nothing to ask" in capsys.readouterr().err


def test_a_pipe_that_closes_early_is_no_error() -> None:
    script = "import sys; from headrace.cli.main import main; sys.exit(main(['config', 'show', '--json']))"
    with subprocess.Popen(
        tied(sys.executable, "-c", script), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize(("text", "ago"), [("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86400), ("1.5h", 5400)])
def test_since_may_be_how_long_ago(text: str, ago: int) -> None:
    assert abs(datetime.now(UTC) - timedelta(seconds=ago) - parse_since(text)) < timedelta(minutes=1)


def test_since_may_be_a_time_local_unless_it_says_otherwise() -> None:
    assert parse_since("2026-11-30T12:00:00Z") == datetime(2026, 11, 30, 12, tzinfo=UTC)
    assert parse_since("2026-11-30T12:00:00+02:00") == datetime(2026, 11, 30, 10, tzinfo=UTC)
    assert parse_since("2026-11-30 12:00") == datetime(2026, 11, 30, 12).astimezone()


@pytest.mark.parametrize("text", ["yesterday", "10x", "-5m", ""])
def test_since_of_another_form_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="neither a time"):
        parse_since(text)


def test_a_terminal_is_not_sent_what_would_control_it() -> None:
    assert printable("a\x1b[31mb\x07\x9bc\r\x7fd\te\nfü🙂") == "a[31mbcd\te\nfü🙂"
