"""A structure is compiled beside the step loop: who waits for it holds nobody up, and can be cancelled."""

import threading
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest

from engine.engine import Engine
from engine.thread import EngineThread
from engine.types import GenerationOutput, GenerationRequest
from schemas.structured import OutputStructure
from tests.engine.structured.structures import WORDS, of_choice, of_schema
from tests.engine.tiny import tiny_engine, tiny_request

WAIT_S = 30


class Workshop:
    """An engine thread whose compiling stands still until `go_on` is set. The compiler is the real one."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.outputs: Queue[GenerationOutput] = Queue()
        self._prepare = engine.executor.prepare
        engine.executor.prepare = self._held_up  # type: ignore[method-assign]  # compiling passes here only
        self.thread = EngineThread(engine)
        self.thread.start()

    def submit(self, request: GenerationRequest) -> None:
        self.thread.submit(request, self.outputs.put)

    def until_end_of(self, request_id: str) -> list[GenerationOutput]:
        """Outputs of any request, up to the last one of this."""
        heard = [self.outputs.get(timeout=WAIT_S)]
        while heard[-1].request_id != request_id or heard[-1].finish_reason is None:
            heard.append(self.outputs.get(timeout=WAIT_S))
        return heard

    def _held_up(self, structure: OutputStructure) -> object:
        if threading.current_thread().name.startswith("structures"):
            self.begun.set()
            assert self.go_on.wait(WAIT_S)
        return self._prepare(structure)


@pytest.fixture
def workshop() -> Iterator[Workshop]:
    workshop = Workshop(tiny_engine())
    yield workshop
    workshop.go_on.set()
    assert workshop.thread.stop(drain=False, timeout_s=WAIT_S)
    assert not workshop.thread.failed.done()


def structured(request_id: str, **fields: Any) -> GenerationRequest:
    given: dict[str, Any] = {"structure": WORDS} | fields
    return tiny_request(request_id, "hi", **given)


def test_others_go_on_while_a_structure_is_compiled(workshop: Workshop) -> None:
    workshop.submit(structured("waits"))
    assert workshop.begun.wait(WAIT_S)
    workshop.submit(tiny_request("free", "hi", max_tokens=20))
    assert {output.request_id for output in workshop.until_end_of("free")} == {"free"}
    workshop.go_on.set()
    assert workshop.until_end_of("waits")[-1].finish_reason == "length"


def test_requests_wait_for_their_own_structure_only_once(workshop: Workshop) -> None:
    workshop.go_on.set()
    for name in ("first", "second"):
        workshop.submit(structured(name))
        workshop.until_end_of(name)


def test_a_request_that_is_cancelled_while_it_waits_never_runs(workshop: Workshop) -> None:
    workshop.submit(structured("r", num_choices=2, emitted={1: [97]}))
    assert workshop.begun.wait(WAIT_S)
    workshop.thread.cancel("r")
    ends = [workshop.outputs.get(timeout=WAIT_S) for _ in range(2)]
    assert [(end.choice, end.index, end.finish_reason) for end in ends] == [(0, 0, "cancelled"), (1, 1, "cancelled")]
    # Its id is free at once, for a request that is not mistaken for it.
    workshop.submit(structured("r", structure=of_choice("ok")))
    workshop.go_on.set()
    assert "".join(output.text for output in workshop.until_end_of("r")) == "ok"
    assert workshop.outputs.empty()


def test_what_cannot_be_compiled_is_refused_with_its_reason(workshop: Workshop) -> None:
    workshop.go_on.set()
    workshop.submit(structured("r", structure=of_schema({"not": {}}), num_choices=2))
    ends = [workshop.outputs.get(timeout=WAIT_S) for _ in range(2)]
    assert [end.finish_reason for end in ends] == ["error", "error"]
    assert all(end.error is not None and end.error.code == "unsupported" for end in ends)


def test_draining_waits_for_what_is_compiled(workshop: Workshop) -> None:
    workshop.submit(structured("r"))
    assert workshop.begun.wait(WAIT_S)
    stopped = threading.Thread(target=lambda: workshop.thread.stop(drain=True, timeout_s=WAIT_S))
    stopped.start()
    workshop.go_on.set()
    assert workshop.until_end_of("r")[-1].finish_reason == "length"
    stopped.join(WAIT_S)
    assert not workshop.thread.is_alive


def test_draining_ends_when_the_last_that_was_waited_for_is_cancelled(workshop: Workshop) -> None:
    workshop.submit(structured("r"))
    assert workshop.begun.wait(WAIT_S)
    stopped = threading.Thread(target=lambda: workshop.thread.stop(drain=True, timeout_s=WAIT_S))
    stopped.start()
    workshop.thread.cancel("r")
    assert workshop.outputs.get(timeout=WAIT_S).finish_reason == "cancelled"
    stopped.join(WAIT_S)
    assert not workshop.thread.is_alive


def test_stopping_at_once_does_not_wait(workshop: Workshop) -> None:
    workshop.submit(structured("r"))
    assert workshop.begun.wait(WAIT_S)
    assert workshop.thread.stop(drain=False, timeout_s=WAIT_S)
    assert workshop.outputs.empty()
