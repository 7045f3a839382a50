"""`headrace generate` and `bench` on a real terminal: signs of life, then the answer, and a clean Ctrl-C."""

import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.ensemble import headrace_command
from tests.consumers.worker.tiny_model import write_tiny_model
from tests.integration.test_cli_terminal import CTRL_C, ESCAPES, Terminal

pytestmark = pytest.mark.integration

FAST = ["--set", "engine.num_threads=1", "--set", "engine.kv_bytes=16777216"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Starts a command on a terminal of its own, with the tiny model."""
    model = ["--gguf", str(write_tiny_model(tmp_path / "tiny.gguf")), *FAST]
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    env |= {"TERM": "xterm-256color", "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    started: list[Terminal] = []

    def run(*words: str) -> Terminal:
        started.append(Terminal([*headrace_command(), *words, *model], env, tmp_path))
        return started[-1]

    yield run
    for terminal in started:
        terminal.close()


async def an_answer_begins(terminal: Terminal) -> None:
    """Read on until something is shown that is not the sign of life."""
    while True:
        chunk = await asyncio.to_thread(terminal._read)
        assert chunk, "it ended before it said anything"
        if "loading" not in chunk and ESCAPES.sub("", chunk).strip():
            return


async def test_a_terminal_sees_the_load_the_answer_and_the_figures(start: Callable[..., Terminal]) -> None:
    terminal = start("generate", "abc", "--raw", "--max-tokens", "20", "--ignore-eos", "--seed", "1")
    await terminal.until("loading tiny")
    shown = await terminal.until("first token after")
    assert shown.strip()
    await terminal.until("20 tokens")
    assert await terminal.end() == 0


async def test_ctrl_c_during_an_answer_ends_it_with_its_figures(start: Callable[..., Terminal]) -> None:
    terminal = start("generate", "abc", "--raw", "--max-tokens", "4000", "--ignore-eos", "--stop", "never said")
    await terminal.until("loading tiny")
    await an_answer_begins(terminal)
    terminal.type(CTRL_C)
    await terminal.until("first token after")
    assert await terminal.end() == 130
    assert "Traceback" not in terminal.screen


async def test_ctrl_c_during_a_measurement_ends_it_cleanly(start: Callable[..., Terminal]) -> None:
    terminal = start("bench", "engine", "--batch", "1", "--context", "64", "--repeats", "100000")
    await terminal.until("measuring")
    terminal.type(CTRL_C)
    assert await terminal.end() == 130
    assert "Traceback" not in terminal.screen
