"""Requests whose structure is being compiled, in a thread of its own: the step loop never waits for that."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from engine.types import GenerationOutput, GenerationRequest

OnOutput = Callable[[GenerationOutput], None]


@dataclass(frozen=True, slots=True, eq=False)
class Preparation:
    """A request on its way to the engine. `compiled` completes with what must be held until it is there, or fails."""

    request: GenerationRequest
    on_output: OnOutput
    compiled: Future[object]


class Preparations:
    """Compiles for one request after the other, in the order of `start`.

    `on_ready` is called in that thread with `changed` held, unless the request was taken out before. All methods may be
    called from any thread, by one that holds `changed` or not.
    """

    def __init__(
        self,
        prepare: Callable[[GenerationRequest], object],
        on_ready: Callable[[Preparation], None],
        *,
        changed: threading.Condition,
    ) -> None:
        self._prepare = prepare
        self._on_ready = on_ready
        self._changed = changed
        self._open: set[Preparation] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="structures")

    def __bool__(self) -> bool:
        return bool(self._open)

    def start(self, request: GenerationRequest, on_output: OnOutput) -> None:
        """Compile what a request needs."""
        preparation = Preparation(request, on_output, Future())
        with self._changed:
            self._open.add(preparation)
        self._thread.submit(self._run, preparation)

    def take_out(self, request_id: str) -> list[Preparation]:
        """The requests of this id that are not ready. They will not be."""
        with self._changed:
            taken = [one for one in self._open if one.request.request_id == request_id]
            self._open.difference_update(taken)
        return taken

    def stop(self) -> None:
        """Compile nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, preparation: Preparation) -> None:
        if preparation not in self._open:
            return
        try:
            preparation.compiled.set_result(self._prepare(preparation.request))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            preparation.compiled.set_exception(error)
        with self._changed:
            if preparation in self._open:
                self._open.discard(preparation)
                self._on_ready(preparation)
