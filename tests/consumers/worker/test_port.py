"""The way to the engine's thread and back."""

import asyncio
import threading

import pytest

from consumers.worker.port import EnginePort, OnOutput
from engine.types import GenerationOutput, GenerationRequest
from schemas.errors import InvalidValue
from schemas.sampling import SamplingParams


class Recorder:
    """Stands where an engine stands: notes what it is asked and speaks from threads, as the test wants."""

    def __init__(self) -> None:
        self.callbacks: dict[str, OnOutput] = {}
        self.cancelled: list[str] = []
        self.refusal: Exception | None = None

    def submit(self, request: GenerationRequest, on_output: OnOutput) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.callbacks[request.request_id] = on_output

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def say(self, request_id: str, *indices: int) -> None:
        """Give outputs from a thread of its own, and return when they are given."""

        def speak() -> None:
            for index in indices:
                self.callbacks[request_id](
                    GenerationOutput(request_id=request_id, choice=0, index=index, token_ids=[index], text="")
                )

        thread = threading.Thread(target=speak)
        thread.start()
        thread.join()


def request(request_id: str) -> GenerationRequest:
    return GenerationRequest(request_id=request_id, prompt_token_ids=[1], sampling=SamplingParams(max_tokens=1, seed=1))


@pytest.fixture
async def engine() -> Recorder:
    return Recorder()


@pytest.fixture
async def port(engine: Recorder) -> EnginePort:
    return EnginePort(engine, asyncio.get_running_loop())


async def test_outputs_arrive_on_the_loop_in_order_and_at_their_own_request(engine: Recorder, port: EnginePort) -> None:
    heard: dict[str, list[int]] = {"a": [], "b": []}
    threads = set()

    def hear(given: GenerationOutput) -> None:
        heard[given.request_id].append(given.index)
        threads.add(threading.current_thread())

    for name in heard:
        port.submit(request(name), hear)
    engine.say("a", 0, 1)
    engine.say("b", 0)
    engine.say("a", 2)
    assert heard == {"a": [], "b": []}
    await asyncio.sleep(0)
    assert heard == {"a": [0, 1, 2], "b": [0]}
    assert threads == {threading.main_thread()}


async def test_the_last_words_of_a_cancelled_request_are_heard(engine: Recorder, port: EnginePort) -> None:
    heard: list[GenerationOutput] = []
    port.submit(request("a"), heard.append)
    port.cancel("a")
    engine.say("a", 0)
    await asyncio.sleep(0)
    assert [given.index for given in heard] == [0]
    assert engine.cancelled == ["a"]


async def test_a_dropped_request_is_stopped_and_not_heard_of_any_more(engine: Recorder, port: EnginePort) -> None:
    heard: list[GenerationOutput] = []
    port.submit(request("a"), heard.append)
    engine.say("a", 0)
    port.drop("a")
    await asyncio.sleep(0)
    assert heard == []
    assert engine.cancelled == ["a"]


async def test_what_was_said_of_a_dropped_request_does_not_reach_the_next_one_of_its_id(
    engine: Recorder, port: EnginePort
) -> None:
    first: list[GenerationOutput] = []
    second: list[GenerationOutput] = []
    port.submit(request("a"), first.append)
    engine.say("a", 0)
    port.drop("a")
    port.submit(request("a"), second.append)
    engine.say("a", 1)
    await asyncio.sleep(0)
    assert first == []
    assert [given.index for given in second] == [1]


async def test_a_request_is_dropped_once_and_one_that_is_forgotten_not_at_all(
    engine: Recorder, port: EnginePort
) -> None:
    for name in ("a", "b"):
        port.submit(request(name), lambda _: None)
    port.drop("a")
    port.drop("a")
    port.forget("b")
    port.drop("b")
    assert engine.cancelled == ["a"]


async def test_a_request_that_the_engine_refuses_leaves_nothing_behind(engine: Recorder, port: EnginePort) -> None:
    engine.refusal = InvalidValue("too long")
    with pytest.raises(InvalidValue):
        port.submit(request("a"), lambda _: None)
    port.drop("a")
    assert engine.cancelled == []
