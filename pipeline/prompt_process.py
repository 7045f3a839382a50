"""One child process of the prompt pool, seen from its parent: started, spoken to, ended."""

import asyncio
import multiprocessing
import socket
from collections.abc import Mapping

from pipeline.context import ModelFacts
from pipeline.prompt_wire import ANSWERS, LENGTH, Answer, Refused
from schemas.errors import ErrorBody, HeadraceError, ModelFileError, PromptFault, RequestError

_END_TIMEOUT_S = 2.0
# The default model takes 0.3 s, a vocabulary of 262,144 tokens some 3 s; a network folder may be slow.
_LOAD_TIMEOUT_S = 120.0

# What a child may answer, by the code that travels.
_KINDS: list[type[HeadraceError]] = [RequestError, *RequestError.__subclasses__(), ModelFileError]
_ERRORS = {kind.code: kind for kind in _KINDS}


def error_of(body: ErrorBody) -> HeadraceError:
    """The error that a child has met, raised again on this side."""
    return _ERRORS.get(body.code, HeadraceError)(body.message, param=body.param)


class PromptProcess:
    """A running child. Its answers come in the order of what was sent; None says that it is gone."""

    def __init__(
        self,
        process: "multiprocessing.process.BaseProcess",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls, models: Mapping[str, str], time_limit_s: float) -> "PromptProcess":
        """Start a child that loads `models` (name to path) and may take `time_limit_s` for one prompt."""
        ours, theirs = socket.socketpair()
        # "spawn": a fork would take our threads' locks with it, in whatever state they are.
        process = multiprocessing.get_context("spawn").Process(
            target=_child, args=(theirs, dict(models), time_limit_s), name="prompt", daemon=True
        )
        try:
            with theirs:
                process.start()
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        return cls(process, reader, writer)

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return self._process.pid

    async def ready(self) -> dict[str, ModelFacts]:
        """What is known of its models, once they are loaded.

        Raises:
            ModelFileError: one cannot be loaded.
            PromptFault: the process died first, or was ended because it took too long.
        """
        try:
            answer = await asyncio.wait_for(self.answer(), _LOAD_TIMEOUT_S)
        except TimeoutError:
            await self.end()
            raise PromptFault(
                f"the process that builds prompts did not load its models in {_LOAD_TIMEOUT_S:g} s; is their disk or "
                "network folder slow, or the machine out of memory?"
            ) from None
        if isinstance(answer, Refused):
            raise error_of(answer.error)
        if answer is None:
            await self.end()
            raise PromptFault(
                f"the process that builds prompts died while it loaded its models (exit code {self._process.exitcode}; "
                "-9 is often a lack of memory)"
            )
        return answer.facts  # type: ignore[union-attr] # a child's first word is Ready or Refused

    def send(self, frame: bytes) -> None:
        """Send one job. If the child is gone, its next answer is None."""
        self._writer.write(frame)

    async def answer(self) -> Answer | None:
        """Its next answer; None where it has died."""
        try:
            (num_bytes,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            return ANSWERS.decode(await self._reader.readexactly(num_bytes))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def end(self) -> None:
        """End it: it stops when its socket closes, or is killed where it hangs."""
        self._writer.close()
        await asyncio.to_thread(self._process.join, _END_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            await asyncio.to_thread(self._process.join)


def _child(connection: socket.socket, models: Mapping[str, str], time_limit_s: float) -> None:
    # Tokenizers and templates are loaded there and not here.
    from pipeline.prompt_child import serve

    serve(connection, models, time_limit_s)
