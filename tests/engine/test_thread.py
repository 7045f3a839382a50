"""The engine in its own thread: it sleeps, wakes, drains, stops, and says when it died."""

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from engine.plan import StepPlan, StepResult
from engine.sequence import Sequence
from engine.thread import EngineThread
from engine.types import GenerationOutput, GenerationRequest
from schemas.errors import EngineFault
from tests.engine.simulation import SimulatedExecutor, expected_tokens, simulated_engine
from tests.engine.tiny import last, tiny_request, tokens

WAIT_S = 20.0


class Gate:
    """Holds an executor's steps until it is opened, so that a test can look at a step that is running."""

    def __init__(self, executor: SimulatedExecutor) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self._run = executor.run
        executor.run = self  # type: ignore[method-assign]  # a test's wrapper

    def __call__(self, plan: StepPlan) -> StepResult:
        self.entered.set()
        assert self.open.wait(WAIT_S)
        return self._run(plan)


class Running:
    """An engine thread over a simulated model, with all outputs in a queue."""

    def __init__(self) -> None:
        self.engine, self.executor = simulated_engine(64)
        self.thread = EngineThread(self.engine)
        self.outputs: queue.Queue[GenerationOutput] = queue.Queue()

    def wait_for_end(self, request_id: str, choices: int = 1) -> list[GenerationOutput]:
        """All outputs until the request's choices have ended; those of others are kept out."""
        mine: list[GenerationOutput] = []
        while sum(output.finish_reason is not None for output in mine) < choices:
            output = self.outputs.get(timeout=WAIT_S)
            if output.request_id == request_id:
                mine.append(output)
        return mine


def wait_until_asleep(name: str) -> None:
    """Until the thread waits for its condition: one that polls would never be seen there."""
    deadline_s = time.monotonic() + WAIT_S
    (ident,) = (thread.ident for thread in threading.enumerate() if thread.name == name)
    assert ident is not None
    while time.monotonic() < deadline_s:
        frame = sys._current_frames()[ident]
        if frame.f_code is threading.Condition.wait.__code__:
            return
    raise AssertionError("the thread never sleeps")


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running()
    yield running
    assert running.thread.stop(drain=False, timeout_s=WAIT_S)


def test_outputs_arrive_and_the_thread_sleeps_between_requests(running: Running) -> None:
    running.thread.start()
    for seed in range(3):
        request = tiny_request("r", "hello", max_tokens=9, num_choices=2, seed=seed)
        running.thread.submit(request, running.outputs.put)
        outputs = running.wait_for_end("r", choices=2)
        for choice in range(2):
            assert tokens(outputs, "r", choice) == expected_tokens(request, choice)
        wait_until_asleep("engine")
    assert running.thread.current_step_started_at is None
    assert running.thread.last_step_at is not None
    assert running.thread.stats.num_running == 0
    assert running.thread.is_alive


def test_requests_of_many_threads_are_all_served(running: Running) -> None:
    running.thread.start()
    requests = [tiny_request(f"r{i}", [i] * 5, max_tokens=20, seed=i) for i in range(24)]

    def submit_all(own: list[GenerationRequest]) -> None:
        for request in own:
            running.thread.submit(request, running.outputs.put)

    submitters = [threading.Thread(target=submit_all, args=[own]) for own in (requests[::2], requests[1::2])]
    for submitter in submitters:
        submitter.start()
    ended: list[GenerationOutput] = []
    while sum(output.finish_reason is not None for output in ended) < len(requests):
        ended.append(running.outputs.get(timeout=WAIT_S))
    for request in requests:
        assert tokens(ended, request.request_id) == expected_tokens(request)


def test_a_refused_request_ends_each_choice_with_its_error(running: Running) -> None:
    running.thread.start()
    request = tiny_request("r", [], num_choices=2, emitted={1: [4, 5]})
    running.thread.submit(request, running.outputs.put)
    outputs = running.wait_for_end("r", choices=2)
    assert [(o.choice, o.index, o.finish_reason) for o in outputs] == [(0, 0, "error"), (1, 2, "error")]
    assert all(o.error is not None and o.error.code == "invalid_value" for o in outputs)


def test_cancel_ends_a_request_and_an_unknown_id_is_no_matter(running: Running) -> None:
    gate = Gate(running.executor)
    running.thread.start()
    running.thread.cancel("nobody")
    running.thread.submit(tiny_request("r", "abc", max_tokens=400), running.outputs.put)
    assert gate.entered.wait(WAIT_S)
    running.thread.cancel("r")
    gate.open.set()
    assert running.wait_for_end("r")[-1].finish_reason == "cancelled"


def test_what_was_cancelled_is_out_of_the_numbers_though_no_step_follows(running: Running) -> None:
    gate = Gate(running.executor)
    running.thread.start()
    running.thread.submit(tiny_request("r", "abc", max_tokens=400), running.outputs.put)
    assert gate.entered.wait(WAIT_S)
    running.thread.cancel("r")
    gate.open.set()
    running.wait_for_end("r")
    wait_until_asleep("engine")
    stats = running.thread.stats
    assert (stats.num_running, stats.num_waiting, stats.kv_blocks_used) == (0, 0, 0)


def test_a_request_that_comes_again_right_after_its_cancel_hears_only_its_own_outputs(running: Running) -> None:
    gate = Gate(running.executor)
    running.thread.start()
    first: list[GenerationOutput] = []
    request = tiny_request("r", "abc", max_tokens=9)
    running.thread.submit(request, first.append)
    assert gate.entered.wait(WAIT_S)
    running.thread.cancel("r")
    running.thread.submit(request, running.outputs.put)
    gate.open.set()
    assert tokens(running.wait_for_end("r"), "r") == expected_tokens(request)
    assert [output.finish_reason for output in first][-1] == "cancelled"


def test_a_step_that_hangs_shows_since_when(running: Running) -> None:
    gate = Gate(running.executor)
    running.thread.start()
    before = time.monotonic()
    running.thread.submit(tiny_request("r", "abc", max_tokens=2), running.outputs.put)
    assert gate.entered.wait(WAIT_S)
    started_at = running.thread.current_step_started_at
    assert started_at is not None
    assert before <= started_at <= time.monotonic()
    assert running.thread.last_step_at is None
    gate.open.set()
    running.wait_for_end("r")


def test_draining_finishes_what_runs_and_refuses_what_is_new(running: Running) -> None:
    gate = Gate(running.executor)
    running.thread.start()
    request = tiny_request("r", "abc", max_tokens=30)
    running.thread.submit(request, running.outputs.put)
    assert gate.entered.wait(WAIT_S)
    stopper = threading.Thread(target=lambda: running.thread.stop(drain=True))
    stopper.start()
    while True:  # until the stop is known to the thread, a submission is still taken
        try:
            running.thread.submit(tiny_request("late", "abc"), running.outputs.put)
        except EngineFault:
            break
        running.thread.cancel("late")
    gate.open.set()
    assert tokens(running.wait_for_end("r"), "r") == expected_tokens(request)
    stopper.join(WAIT_S)
    assert not running.thread.is_alive
    assert not running.thread.failed.done()


def test_stopping_without_draining_leaves_requests_without_an_end() -> None:
    running = Running()
    gate = Gate(running.executor)
    running.thread.start()
    running.thread.submit(tiny_request("r", "abc", max_tokens=400, ignore_eos=True), running.outputs.put)
    assert gate.entered.wait(WAIT_S)
    assert not running.thread.stop(drain=False, timeout_s=0.0)
    gate.open.set()
    assert running.thread.stop(drain=False, timeout_s=WAIT_S)
    outputs = list(running.outputs.queue)
    assert all(output.finish_reason is None for output in outputs)
    assert len(outputs) <= 1


def test_a_thread_that_never_started_can_be_stopped() -> None:
    assert Running().thread.stop(drain=True)


def test_a_failed_step_does_not_end_the_thread(running: Running) -> None:
    running.executor.fail_next = True
    running.thread.start()
    running.thread.submit(tiny_request("r", "abc"), running.outputs.put)
    assert last(running.wait_for_end("r"), "r").finish_reason in ("stop", "length")
    running.thread.submit(tiny_request("again", "abc"), running.outputs.put)
    assert last(running.wait_for_end("again"), "again").finish_reason in ("stop", "length")


def broken_callback(output: GenerationOutput) -> None:
    raise ZeroDivisionError(output.request_id)


def break_commit(running: Running) -> None:
    def commit(sequence: Sequence, num_rows: int) -> None:
        raise ZeroDivisionError("planted")

    running.engine._scheduler.commit = commit  # type: ignore[method-assign]  # a fault where no interface leads


@pytest.mark.parametrize("plant", [None, break_commit], ids=["callback", "scheduler"])
def test_what_cannot_be_survived_reaches_failed(plant: Callable[[Running], None] | None) -> None:
    running = Running()
    if plant is not None:
        plant(running)
    running.thread.start()
    running.thread.submit(tiny_request("r", "abc"), broken_callback)
    with pytest.raises(ZeroDivisionError):
        running.thread.failed.result(timeout=WAIT_S)
    assert running.thread.stop(drain=True, timeout_s=WAIT_S)
    with pytest.raises(EngineFault, match="stopping"):
        running.thread.submit(tiny_request("late", "abc"), running.outputs.put)
