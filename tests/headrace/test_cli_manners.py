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
