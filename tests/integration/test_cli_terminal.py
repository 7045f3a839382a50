"""The conversation of `headrace chat` on a real terminal, with gate and worker played record by record."""

import asyncio
import errno
import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from schemas.settings import Settings
from tests.integration.responder import Responder
from tests.integration.test_cli import HEADRACE, Cli
from tests.tied import tied

pytestmark = pytest.mark.integration

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r")
CTRL_C, CTRL_D, ENTER, UP = "\x03", "\x04", "\r", "\x1b[A"


class Terminal:
    """A process on a pseudo terminal."""

    def __init__(self, command: list[str], env: dict[str, str], folder: Path) -> None:
        self._fd, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        # setsid gives it the terminal as its own, so that Ctrl-C becomes a signal there.
        self.process = subprocess.Popen(
            tied("setsid", "--ctty", *command), stdin=slave, stdout=slave, stderr=slave, env=env, cwd=folder
        )
        os.close(slave)
        self.screen = ""

    def type(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def echoes(self) -> bool:
        """Whether what is typed is shown by the terminal itself."""
        return bool(termios.tcgetattr(self._fd)[3] & termios.ECHO)

    async def until(self, text: str) -> str:
        """Read until the text is shown; all that was shown before it since the last time."""
        while text not in self.screen:
            chunk = await asyncio.to_thread(self._read)
            assert chunk, f"{text!r} never came: {self.screen!r}"
            self.screen += ESCAPES.sub("", chunk)
        before, _, self.screen = self.screen.partition(text)
        return before

    async def end(self) -> int:
        """Read to the end; the exit code."""
        while chunk := await asyncio.to_thread(self._read):
            self.screen += ESCAPES.sub("", chunk)
        return await asyncio.to_thread(self.process.wait)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._fd)

    def _read(self) -> str:
        try:
            return os.read(self._fd, 65536).decode(errors="replace")
        except OSError as error:
            if error.errno == errno.EIO:  # Linux: the other end is closed
                return ""
            raise


@contextmanager
def terminal(cli: Cli, *words: str) -> Iterator[Terminal]:
    opened = Terminal([str(HEADRACE), *words], {**cli.env, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}, cli.folder)
    try:
        yield opened
    finally:
        opened.close()


async def answer(responder: Responder, text: str) -> str:
    """Answer the next request; returns its session."""
    asked = await responder.asked()
    await responder.delta(asked, 0, text, finish_reason="stop")
    await responder.result(asked, text)
    assert asked.request.session is not None
    return asked.request.session


async def test_a_conversation_keeps_its_session_until_a_new_one(
    settings: Settings, responder: Responder, tmp_path: Path
) -> None:
    with terminal(Cli(settings, tmp_path), "chat", "--session", "mine") as screen:
        await screen.until("session mine")
        await screen.until("› ")
        screen.type("one" + ENTER)
        assert await answer(responder, "first answer") == "mine"
        await screen.until("first answer")
        await screen.until("first token after")
        await screen.until("› ")
        screen.type("two" + ENTER)
        assert await answer(responder, "second answer") == "mine"
        await screen.until("second answer")
        await screen.until("› ")
        screen.type("/new" + ENTER)
        await screen.until("session chat-")
        await screen.until("› ")
        screen.type("three" + ENTER)
        assert (await answer(responder, "third answer")).startswith("chat-")
        await screen.until("third answer")
        await screen.until("› ")
        screen.type("/nonsense" + ENTER)
        await screen.until("there is no /nonsense")
        await screen.until("› ")
        screen.type(CTRL_D)
        assert await screen.end() == 0
    assert "three" in (tmp_path / "headrace/chat_history").read_text()


async def test_a_line_that_cannot_be_asked_is_told_and_the_conversation_goes_on(
    settings: Settings, responder: Responder, tmp_path: Path
) -> None:
    # What was typed can be kept nowhere, either.
    (tmp_path / "headrace").write_text("no folder")
    with terminal(Cli(settings, tmp_path), "chat", "--session", "two words") as screen:
        await screen.until("what you type is not kept")
        await screen.until("› ")
        screen.type("one" + ENTER)
        await screen.until("(in 'session')")
        await screen.until("› ")
        screen.type("/new" + ENTER)
        await screen.until("session chat-")
        await screen.until("› ")
        screen.type("two" + ENTER)
        assert (await answer(responder, "an answer")).startswith("chat-")
        await screen.until("an answer")
        await screen.until("› ")
        screen.type(CTRL_D)
        assert await screen.end() == 0


async def test_ctrl_c_drops_a_line_and_pressed_twice_it_leaves(
    settings: Settings, responder: Responder, tmp_path: Path
) -> None:
    with terminal(Cli(settings, tmp_path), "chat") as screen:
        await screen.until("› ")
        screen.type("dropped" + CTRL_C)
        await screen.until("Ctrl-C once more leaves")
        await screen.until("› ")
        screen.type("next" + ENTER)
        asked = await responder.asked()
        assert asked.request.messages[0].text == "next"
        await responder.result(asked, "answered")
        await screen.until("answered")
        await screen.until("› ")
        screen.type(CTRL_C)
        await screen.until("Ctrl-C once more leaves")
        await screen.until("› ")
        screen.type(CTRL_C)
        assert await screen.end() == 0
        assert "Traceback" not in screen.screen


async def test_the_system_message_is_sent_once_a_session(
    settings: Settings, responder: Responder, tmp_path: Path
) -> None:
    with terminal(Cli(settings, tmp_path), "chat", "--system", "Be kind.") as screen:
        roles = []
        for keys in ("one", "two", "/new", "three"):
            await screen.until("› ")
            screen.type(keys + ENTER)
            if keys != "/new":
                asked = await responder.asked()
                roles.append([message.role for message in asked.request.messages])
                await responder.result(asked, "fine")
                await screen.until("fine")
        await screen.until("› ")
        screen.type(CTRL_D)
        assert await screen.end() == 0
    assert roles == [["system", "user"], ["user"], ["system", "user"]]
