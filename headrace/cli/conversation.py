"""The conversation of `headrace chat` without a text: one session, turn by turn, on a terminal."""

import asyncio
import secrets
from collections import deque
from collections.abc import Mapping
from typing import Any

import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import HTML
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from headrace.cli.answering import STOP, Answering
from headrace.cli.exits import EXIT_OK, EXIT_TERMINATED
from headrace.cli.interrupts import end_in_order
from headrace.cli.speaker import note
from headrace.cli.stopping import Stopper
from headrace.client import Client
from schemas.errors import HeadraceError
from schemas.settings import Settings

HELP = """\
/stop     stop the answer, as Ctrl-C does; the session forgets the turn
/new      begin a new session: nothing of this one is remembered in it
/session  show this session's id; `headrace chat --session ID` goes on with it
/help     this
/exit     leave (as do Ctrl-D, and Ctrl-C pressed twice)
You may type while an answer streams: the line is asked when that has ended."""

_LEAVE = ("/exit", "/quit")


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
) -> int:
    """Ask and answer until the user leaves; the exit code.

    Whoever ends the process ends it in good order: the terminal must echo again what is typed.
    """
    with end_in_order():
        try:
            async with Client(settings, timeout_s=timeout_s) as client:
                conversation = Conversation(
                    settings, client, session or new_session_id(), system, {"model": model, **options}
                )
                note(f"session {conversation.session} · /help shows what else there is, Ctrl-D leaves")
                await conversation.run()
        except asyncio.CancelledError:
            return EXIT_TERMINATED
    return EXIT_OK


class Conversation:
    """The state of a conversation: its session, whether the system message is to be sent yet, what was typed ahead."""

    def __init__(
        self, settings: Settings, client: Client, session: str, system: str | None, options: Mapping[str, Any]
    ) -> None:
        self.session = session
        self._settings = settings
        self._client = client
        self._system = system
        self._unsent_system = system
        self._options = options
        self._typed: deque[str] = deque()
        self._prompt: PromptSession[str] = PromptSession(history=_history())

    async def run(self) -> None:
        """Read lines until the user leaves."""
        was_interrupted = False
        while True:
            try:
                line = self._typed.popleft() if self._typed else (await self._ask_for_line()).strip()
            except EOFError:
                return
            except KeyboardInterrupt:  # as in a shell: the line is dropped
                if was_interrupted:
                    return
                was_interrupted = True
                note("Ctrl-C once more leaves")
                continue
            was_interrupted = False
            if line in _LEAVE or not await self._take(line):
                return

    async def _take(self, line: str) -> bool:
        """Do what a line asks for; whether the conversation goes on."""
        if line.startswith("/"):
            self._obey(line)
        elif line:
            return await self._ask(line)
        return True

    def _obey(self, command: str) -> None:
        if command == "/new":
            self.session, self._unsent_system = new_session_id(), self._system
            note(f"session {self.session}")
        elif command == "/session":
            note(self.session)
        elif command == STOP:
            note("there is no answer to stop")
        else:
            note(HELP if command == "/help" else f"there is no {command}\n{HELP}")

    async def _ask(self, line: str) -> bool:
        messages = [{"role": "user", "content": line}]
        if self._unsent_system:
            messages.insert(0, {"role": "system", "content": self._unsent_system})
        try:
            answer = self._client.stream(messages, session=self.session, **self._options)
        except HeadraceError as error:
            note(f"error: {error.message}")
            return True
        stopper = Stopper(self._client, answer, self.session)
        answering = Answering(self._settings, answer, stopper, self._ask_for_line)
        try:
            result = await answering.run()
        except HeadraceError as error:
            note(f"error: {error.message}")
        else:
            # A turn that did not complete is none of the session's: the next one is the first again.
            self._unsent_system = None if result and result.status == "completed" else self._unsent_system
        self._typed.extend(answering.typed)
        return not answering.wants_to_leave

    async def _ask_for_line(self) -> str:
        # Signals are those of whoever shows an answer meanwhile; the key Ctrl-C is always heard.
        return await self._prompt.prompt_async(HTML("<ansicyan><b>› </b></ansicyan>"), handle_sigint=False)


def _history() -> History:
    """What was typed in earlier conversations; where no file can keep it, in this one only."""
    file = platformdirs.user_state_path("headrace") / "chat_history"
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.open("ab").close()
    except OSError as error:
        note(f"what you type is not kept for another time: {file}: {error.strerror}")
        return InMemoryHistory()
    return FileHistory(str(file))
