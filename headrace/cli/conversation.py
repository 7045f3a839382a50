"""The conversation of `headrace chat` without a text: one session, turn by turn, on a terminal."""

import asyncio
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.history import FileHistory

from headrace.cli.chat import show
from headrace.cli.speaker import note
from headrace.client import Client
from schemas.errors import HeadraceError
from schemas.settings import Settings

HELP = """\
/new      begin a new session: nothing of this one is remembered in it
/session  show this session's id; `headrace chat --session ID` goes on with it
/help     this
/exit     leave (as does Ctrl-D)
Ctrl-C    stop showing an answer; the request runs on, and its turn counts"""


def new_session_id() -> str:
    """A session id that nobody has, short enough to copy by hand."""
    return f"chat-{secrets.token_hex(6)}"


async def converse(
    settings: Settings,
    session: str | None,
    *,
    model: str | None,
    system: str | None,
    timeout_s: float,
    options: Mapping[str, Any],
) -> None:
    """Ask and answer until the user leaves."""
    async with Client(settings, timeout_s=timeout_s) as client:
        conversation = Conversation(client, session or new_session_id(), system, {"model": model, **options})
        note(f"session {conversation.session} · /help shows what else there is, Ctrl-D leaves")
        await conversation.run()


class Conversation:
    """The state of a conversation: its session, and whether the system message is still to be sent."""

    def __init__(self, client: Client, session: str, system: str | None, options: Mapping[str, Any]) -> None:
        self.session = session
        self._client = client
        self._system = system
        self._unsent_system = system
        self._options = options
        self._prompt: PromptSession[str] = PromptSession(history=FileHistory(str(_history_file())))

    async def run(self) -> None:
        """Read lines until the user leaves."""
        while True:
            try:
                line = (await self._prompt.prompt_async(HTML("<ansicyan><b>› </b></ansicyan>"))).strip()
            except EOFError:
                return
            except KeyboardInterrupt:
                continue  # as in a shell: the line is dropped
            if line in ("/exit", "/quit"):
                return
            if line.startswith("/"):
                self._obey(line)
            elif line:
                await self._ask(line)

    def _obey(self, command: str) -> None:
        if command == "/new":
            self.session, self._unsent_system = new_session_id(), self._system
            note(f"session {self.session}")
        elif command == "/session":
            note(self.session)
        else:
            note(HELP if command == "/help" else f"there is no {command}\n{HELP}")

    async def _ask(self, line: str) -> None:
        messages = [{"role": "user", "content": line}]
        if self._unsent_system:
            messages.insert(0, {"role": "system", "content": self._unsent_system})
        try:
            answer = asyncio.create_task(show(self._client.stream(messages, session=self.session, **self._options)))
            with _CtrlC(answer):
                await answer
            self._unsent_system = None
        except asyncio.CancelledError:
            self._unsent_system = None  # it went with the request
            note("stopped showing; the request runs on")
        except HeadraceError as error:
            note(f"error: {error.message}")


class _CtrlC:
    """Inside the block, Ctrl-C cancels a task and nothing else."""

    def __init__(self, task: "asyncio.Task[None]") -> None:
        self._task = task

    def __enter__(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._task.cancel)

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)


def _history_file() -> Path:
    folder = platformdirs.user_state_path("headrace")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / "chat_history"
