"""The way to the engine's thread and back: what it gives is handed to the event loop in the order in which it came."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from engine.types import GenerationOutput, GenerationRequest

OnOutput = Callable[[GenerationOutput], None]


class Engine(Protocol):
    """What the port needs of an engine in a thread of its own: `submit` calls back from that thread."""

    def submit(self, request: GenerationRequest, on_output: OnOutput) -> None:
        """Start a request, or refuse it in its last outputs. EngineFault: the thread has ended."""

    def cancel(self, request_id: str) -> None:
        """Stop a request; one that is unknown is no error."""


class EnginePort:
    """Submits and cancels from the event loop. Many outputs cross over in one wake-up of the loop."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine = engine
        self._loop = loop
        # Each output with the listener that it was submitted with: an id may be dropped and submitted again.
        self._outputs: deque[tuple[OnOutput, GenerationOutput]] = deque()
        self._listeners: dict[str, OnOutput] = {}
        self._is_woken = False

    def submit(self, request: GenerationRequest, on_output: OnOutput) -> None:
        """Start a request; `on_output` is called on the event loop until it is forgotten or dropped.

        Raises:
            EngineFault: the engine's thread has ended.
        """
        self._listeners[request.request_id] = on_output
        try:
            self._engine.submit(request, partial(self._cross, on_output))
        except BaseException:
            del self._listeners[request.request_id]
            raise

    def forget(self, request_id: str) -> None:
        """Hear no more of a request that has ended."""
        self._listeners.pop(request_id, None)

    def cancel(self, request_id: str) -> None:
        """Stop a request; its last outputs, with the text that was held back, are still heard."""
        self._engine.cancel(request_id)

    def drop(self, request_id: str) -> None:
        """Stop a request and hear no more of it; what the engine gave up to now is dropped."""
        if self._listeners.pop(request_id, None) is not None:
            self._engine.cancel(request_id)

    def _cross(self, listener: OnOutput, output: GenerationOutput) -> None:
        # In the engine's thread. A deque is safe to append to; the flag is only a saving: a lost race wakes once more.
        self._outputs.append((listener, output))
        if not self._is_woken:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_woken = False
        while self._outputs:
            listener, output = self._outputs.popleft()
            if self._listeners.get(output.request_id) == listener:
                listener(output)
