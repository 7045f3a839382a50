"""Stopping an answer on its way: the request is cancelled, and what it has said until then is still shown."""

import asyncio
from typing import TYPE_CHECKING, Any

from headrace.cli.speaker import note
from schemas.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client import Client, TokenStream

# A cancel is through in some milliseconds. Who has asked for a stop does not want to wait for long where it is not.
_STOP_WAIT_S = 2.0


class Stopper:
    """Watches over one answer while it is shown. `keeps`: stopping ends the showing only, and the request runs on."""

    def __init__(self, client: "Client", answer: "TokenStream", session: str | None, *, keeps: bool = False) -> None:
        self.was_asked = False
        self._client = client
        self._answer = answer
        self._session = session
        self._keeps = keeps
        self._failure: str | None = None
        self._asked = asyncio.Event()

    def stop(self) -> None:
        """Ask for the end. A second time: do not wait for it."""
        self.was_asked = True
        self._asked.set()

    async def until_end(self, showing: "asyncio.Task[Any]") -> None:
        """Wait until the answer has been shown, or was stopped. Raises what `showing` raises."""
        try:
            if not await _ended_first(showing, self._asked) and not self._keeps:
                await self._cancel(showing)
            if showing.done():
                showing.result()
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)

    def say(self) -> None:
        """Say what became of the request."""
        result = self._answer.result
        if result is None:
            note(self._unknown())
        elif result.status == "cancelled":
            note(f"stopped after {result.usage.completion_tokens} tokens")
        else:
            note(f"too late to stop it: it had {'ended' if result.status == 'completed' else result.status} already")

    def _unknown(self) -> str:
        whose = f"{self._answer.request_id}{f' --session {self._session}' if self._session else ''}"
        if self._failure is not None:
            return f"it could not be stopped ({self._failure}) and runs on: `headrace cancel {whose}` tries again"
        state = "it runs on" if self._keeps else "it was asked to stop and has not ended yet"
        return f"{state}: `headrace tail {whose}` shows its answer"

    async def _cancel(self, showing: "asyncio.Task[Any]") -> None:
        self._asked.clear()
        is_sent = False
        try:
            async with asyncio.timeout(_STOP_WAIT_S):
                await self._client.cancel(self._answer.request_id, session=self._session)
                is_sent = True
                await _ended_first(showing, self._asked)
        except TimeoutError:
            self._failure = None if is_sent else "Kafka does not answer"
        except HeadraceError as error:
            self._failure = error.message


async def _ended_first(task: "asyncio.Task[Any]", event: asyncio.Event) -> bool:
    """Wait for either; whether the task has ended."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return task.done()
