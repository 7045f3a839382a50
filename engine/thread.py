"""Runs an engine in a thread of its own, so that an event loop never waits for a forward pass.

The thread sleeps on a condition while there is no work. What it reports, it reports from itself: `on_output` is called
in the engine's thread, must return soon, and hands over to its own loop (`call_soon_threadsafe`) what takes longer.
"""

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from engine.engine import Engine
from engine.preparation import OnOutput, Preparation, Preparations
from engine.types import EngineStats, GenerationOutput, GenerationRequest
from schemas.errors import EngineFault, ErrorBody, HeadraceError, RequestError
from schemas.sampling import FinishReason

log = logging.getLogger(__name__)

_Command = Callable[[], None]


@dataclass(slots=True)
class _Listener:
    """Who hears of a request, until `num_open` choices have ended."""

    on_output: OnOutput
    num_open: int


# The loop lets the interpreter go with every operation of a step, and waits so long to have it back from a busy event
# loop. Python's 5 ms cost 5 % of the tokens/s when others held it a sixth of the time.
_SWITCH_INTERVAL_S = 0.0005


class EngineThread:
    """A running engine. All methods may be called from any thread.

    `failed` completes with the exception if the loop dies of one; nothing more comes out then, and the process should
    end so that another worker takes its requests over.
    """

    def __init__(self, engine: Engine, *, name: str = "engine") -> None:
        self._engine = engine
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._changed = threading.Condition()
        self._commands: deque[_Command] = deque()
        self._preparations = Preparations(engine.prepare, self._take_prepared, changed=self._changed)
        self._listeners: dict[str, _Listener] = {}
        self._is_stopping = False
        self._is_draining = False
        self._last_step_at: float | None = None
        self._current_step_started_at: float | None = None
        self._stats = engine.stats()
        self.failed: Future[None] = Future()

    @property
    def last_step_at(self) -> float | None:
        """When a step last ended, on the monotonic clock; None before the first."""
        return self._last_step_at

    @property
    def current_step_started_at(self) -> float | None:
        """When what the thread is doing now began: taking requests in, a step, giving out what it gave. None while it
        sleeps. What hangs shows here."""
        return self._current_step_started_at

    @property
    def stats(self) -> EngineStats:
        """The engine's numbers after its last step."""
        return self._stats

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the loop. Threads of the whole process take turns faster from now on."""
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._thread.start()

    def stop(self, *, drain: bool, timeout_s: float | None = None) -> bool:
        """End the loop and wait for it; False if it has not ended in time.

        With `drain` what is running runs to its end first. Without, the loop ends after the current step, and what was
        running gets no further output: another worker goes on with it.
        """
        with self._changed:
            self._is_stopping = True
            self._is_draining = drain
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        self._preparations.stop()
        return not self._thread.is_alive()

    def submit(self, request: GenerationRequest, on_output: OnOutput) -> None:
        """Run a request. Each choice's last output has a finish reason, also if the request is refused. One that has a
        structure waits until that is compiled, and the others go on meanwhile.

        EngineFault if the loop has ended or is ending.
        """
        with self._changed:
            if self._is_stopping or self.failed.done():
                raise EngineFault("The engine is stopping and takes no new request.")
            if request.sampling.structure is not None:
                self._preparations.start(request, on_output)
            else:
                self._commands.append(lambda: self._add(request, on_output))
                self._changed.notify()

    def cancel(self, request_id: str) -> None:
        """End a request before the next step; nothing happens if it is not running."""
        with self._changed:
            self._commands.append(lambda: self._cancel(request_id))
            self._changed.notify()

    def _run(self) -> None:
        try:
            self._engine.executor.bind_thread()
            while self._wait():
                self._step()
        except BaseException as error:  # noqa: BLE001 - whatever ends the thread must reach whoever watches it
            self.failed.set_exception(error)
        finally:
            self._current_step_started_at = None

    def _wait(self) -> bool:
        """Sleep until there is work, and take in what was asked for; False at the end."""
        with self._changed:
            while not (self._commands or self._engine.has_work or self._may_end):
                self._changed.wait()
            commands, self._commands = self._commands, deque()
            must_end = self._is_stopping and not self._is_draining
            self._current_step_started_at = time.monotonic()
        for command in commands:
            command()
        with self._changed:
            return not must_end and bool(self._commands or self._engine.has_work or not self._may_end)

    @property
    def _may_end(self) -> bool:
        """Whether the loop ends when nothing is left to do."""
        return self._is_stopping and not (self._is_draining and self._preparations)

    def _step(self) -> None:
        outputs: list[GenerationOutput] = []
        if self._engine.has_work:
            outputs = self._engine.step()
            self._last_step_at = time.monotonic()
        # Also where no step was needed: a cancel changes them as well.
        self._stats = self._engine.stats()
        for output in outputs:
            self._deliver(output)
        self._current_step_started_at = None

    def _deliver(self, output: GenerationOutput) -> None:
        listener = self._listeners[output.request_id]
        if output.finish_reason is not None:
            listener.num_open -= 1
            if not listener.num_open:
                del self._listeners[output.request_id]
        listener.on_output(output)

    def _take_prepared(self, preparation: Preparation) -> None:
        """Called with `_changed` held."""
        self._commands.append(lambda: self._add(preparation.request, preparation.on_output, preparation.compiled))
        self._changed.notify()

    def _add(self, request: GenerationRequest, on_output: OnOutput, compiled: Future[object] | None = None) -> None:
        try:
            if compiled is not None:
                compiled.result()
            self._engine.add(request)
        except RequestError as error:
            self._refuse(request, on_output, error)
        except Exception as error:
            # A fault of ours that this request shows. It leaves nothing behind in the engine, so the others go on.
            log.exception("A request could not be taken in.")
            self._refuse(request, on_output, EngineFault(f"taking it in failed ({type(error).__name__}: {error})"))
        else:
            self._listeners[request.request_id] = _Listener(on_output, request.sampling.num_choices)

    def _refuse(self, request: GenerationRequest, on_output: OnOutput, error: HeadraceError) -> None:
        for choice in range(request.sampling.num_choices):
            on_output(_ended(request, choice, "error", error.body))

    def _cancel(self, request_id: str) -> None:
        for preparation in self._preparations.take_out(request_id):
            for choice in range(preparation.request.sampling.num_choices):
                preparation.on_output(_ended(preparation.request, choice, "cancelled"))
        for output in self._engine.cancel(request_id):
            self._deliver(output)


def _ended(
    request: GenerationRequest, choice: int, finish_reason: FinishReason, error: ErrorBody | None = None
) -> GenerationOutput:
    """The only output of a choice that never ran."""
    return GenerationOutput(
        request_id=request.request_id,
        choice=choice,
        index=len(request.emitted.get(choice, ())),
        token_ids=[],
        text="",
        finish_reason=finish_reason,
        num_prompt_tokens=len(request.prompt_token_ids),
        error=error,
    )
