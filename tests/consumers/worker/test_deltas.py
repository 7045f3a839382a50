"""The lane of one partition: what leaves when, together with what, and what happens when a send fails."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from consumers.transactor import OutRecord
from consumers.worker.deltas import Ack, DeltaLane, Stream
from consumers.worker.pace import Pace, pace_of
from consumers.worker.piece import MAX_TOKENS_PER_DELTA, Piece
from schemas.envelope import Envelope
from schemas.errors import BrokerUnavailable
from schemas.settings import WorkerSettings

INTERVAL_S = 0.04
STREAMED = Pace(0.0, INTERVAL_S)
CHECKPOINTED = Pace(5.0, 5.0)


class Broker:
    """Acknowledges a send when the test says so, at the offset where its log ends."""

    def __init__(self) -> None:
        self.sends: list[list[str]] = []
        self.log: list[str] = []
        self.num_accepted: int | None = None
        self.failure: Exception | None = None
        self.is_answering = asyncio.Event()
        self.is_answering.set()

    async def send(self, records: Sequence[OutRecord]) -> Ack:
        names = [(record.value or b"").decode() for record in records][: self.num_accepted]
        self.sends.append(names)
        await self.is_answering.wait()
        if self.failure is not None:
            raise self.failure
        self.log += names
        return Ack(len(names), len(self.log) - len(names))


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """A lane between a broker and a clock that the test holds in its hands."""

    def __init__(self) -> None:
        self.broker, self.clock = Broker(), Clock()
        self.failures: list[Exception] = []
        self.lane = DeltaLane(self.broker.send, on_failure=self.failures.append, clock=self.clock)

    def stream(self, name: str = "a", pace: Pace = STREAMED) -> Stream:
        return Stream(
            lambda piece: record(f"{name}{piece.choice}:{piece.index}+{len(piece.token_ids)}{_end(piece)}"), pace
        )

    async def pass_time(self, seconds: float = 0.0) -> None:
        """Let the lane see a later time. It looks at its clock whenever something is pushed or marked."""
        self.clock.now_s += seconds
        self.lane.wake()
        for _ in range(10):
            await asyncio.sleep(0)


def record(name: str) -> OutRecord:
    return OutRecord("tokens", 0, b"key", name.encode())


def _end(piece: Piece) -> str:
    return "." if piece.is_final else ""


def tokens(index: int, num_tokens: int = 1, choice: int = 0) -> Piece:
    return Piece(choice, index, token_ids=list(range(num_tokens)))


def final(index: int, choice: int = 0) -> Piece:
    return Piece(choice, index, finish_reason="stop")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    bench.lane.start(0)
    yield bench
    bench.broker.is_answering.set()
    await bench.lane.stop()


async def test_the_first_token_leaves_at_once(bench: Bench) -> None:
    bench.lane.push(bench.stream(), tokens(0))
    await bench.pass_time()
    assert bench.broker.sends == [["a0:0+1"]]


async def test_later_tokens_leave_together_once_an_interval(bench: Bench) -> None:
    stream = bench.stream()
    bench.lane.push(stream, tokens(0))
    await bench.pass_time()
    for index in (1, 2, 3):
        bench.lane.push(stream, tokens(index))
        await bench.pass_time(INTERVAL_S / 4)
    assert bench.broker.log == ["a0:0+1"]
    await bench.pass_time(INTERVAL_S / 4)
    assert bench.broker.log == ["a0:0+1", "a0:1+3"]


async def test_an_interval_belongs_to_one_request_and_not_to_the_partition(bench: Bench) -> None:
    bench.lane.push(bench.stream("a"), tokens(0))
    await bench.pass_time()
    bench.lane.push(bench.stream("b"), tokens(0))
    await bench.pass_time()
    assert bench.broker.log == ["a0:0+1", "b0:0+1"]


async def test_the_end_does_not_wait_for_the_interval(bench: Bench) -> None:
    stream = bench.stream()
    bench.lane.push(stream, tokens(0))
    await bench.pass_time()
    bench.lane.push(stream, tokens(1))
    bench.lane.push(stream, final(2))
    await bench.pass_time()
    assert bench.broker.log == ["a0:0+1", "a0:1+1."]


async def test_one_send_is_in_flight_and_what_comes_meanwhile_joins_the_next(bench: Bench) -> None:
    stream = bench.stream()
    bench.broker.is_answering.clear()
    bench.lane.push(stream, tokens(0))
    await bench.pass_time()
    for index in range(1, 6):
        bench.lane.push(stream, tokens(index))
        await bench.pass_time(INTERVAL_S)
    assert len(bench.broker.sends) == 1
    bench.broker.is_answering.set()
    await bench.pass_time()
    assert bench.broker.log == ["a0:0+1", "a0:1+5"]


async def test_one_choice_that_ends_does_not_hurry_the_others(bench: Bench) -> None:
    stream = bench.stream()
    for choice in (0, 1):
        bench.lane.push(stream, tokens(0, choice=choice))
    await bench.pass_time()
    bench.lane.push(stream, tokens(1, choice=0))
    bench.lane.push(stream, final(1, choice=1))
    await bench.pass_time()
    assert bench.broker.log == ["a0:0+1", "a1:0+1", "a1:1+0."]
    await bench.pass_time(INTERVAL_S)
    assert bench.broker.log[3:] == ["a0:1+1"]


async def test_a_request_that_is_not_streamed_leaves_a_checkpoint_now_and_then(bench: Bench) -> None:
    stream = bench.stream(pace=CHECKPOINTED)
    for index in range(8):
        bench.lane.push(stream, tokens(index))
        await bench.pass_time(1.0)
    assert bench.broker.log == ["a0:0+5"]
    await bench.pass_time(2.0)
    assert bench.broker.log == ["a0:0+5", "a0:5+3"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Pace(0.0, 0.04)),
        ({"priority_class": "bulk"}, Pace(0.0, 1.0)),
        ({"stream": False}, Pace(5.0, 5.0)),
        ({"stream": False, "priority_class": "bulk"}, Pace(5.0, 5.0)),
    ],
)
def test_the_pace_follows_from_who_reads(fields: dict[str, Any], expected: Pace) -> None:
    envelope = Envelope(request_id="r", key="r", accepted_at_ms=0, deadline_ms=1, traceparent="", **fields)
    assert pace_of(envelope, WorkerSettings()) == expected


async def test_a_request_that_is_not_streamed_gets_each_choice_whole(bench: Bench) -> None:
    stream = bench.stream(pace=CHECKPOINTED)
    for index in range(4):
        bench.lane.push(stream, tokens(index, choice=0))
        bench.lane.push(stream, tokens(index, choice=1))
    await bench.pass_time(10 * INTERVAL_S)
    assert bench.broker.sends == []
    bench.lane.push(stream, final(4, choice=1))
    await bench.pass_time()
    assert bench.broker.log == ["a1:0+4."]
    bench.lane.push(stream, final(4, choice=0))
    await bench.pass_time()
    assert bench.broker.log == ["a1:0+4.", "a0:0+4."]


async def test_a_delta_never_holds_more_tokens_than_fit_a_record(bench: Bench) -> None:
    stream = bench.stream(pace=CHECKPOINTED)
    for index in range(MAX_TOKENS_PER_DELTA + 10):
        bench.lane.push(stream, tokens(index))
    bench.lane.push(stream, final(MAX_TOKENS_PER_DELTA + 10))
    await bench.pass_time()
    assert bench.broker.log == [f"a0:0+{MAX_TOKENS_PER_DELTA}", f"a0:{MAX_TOKENS_PER_DELTA}+10."]


async def test_what_was_pushed_last_leaves_last_so_that_the_closing_delta_closes(bench: Bench) -> None:
    stream = bench.stream(pace=CHECKPOINTED)
    bench.lane.push(stream, tokens(0, choice=0))
    bench.lane.push(stream, final(0, choice=1))
    bench.lane.push(stream, final(1, choice=0))
    await bench.pass_time()
    assert bench.broker.log == ["a1:0+0.", "a0:0+1."]


async def test_what_does_not_fit_one_send_follows_in_the_next_in_order(bench: Bench) -> None:
    bench.broker.num_accepted = 2
    stream = bench.stream()
    for choice in range(5):
        bench.lane.push(stream, tokens(0, choice=choice))
    await bench.pass_time()
    assert bench.broker.sends == [["a0:0+1", "a1:0+1"], ["a2:0+1", "a3:0+1"], ["a4:0+1"]]


async def test_a_stream_is_acknowledged_when_its_last_record_is(bench: Bench) -> None:
    stream = bench.stream()
    assert stream.acked.is_set()
    bench.broker.is_answering.clear()
    bench.lane.push(stream, tokens(0))
    await bench.pass_time()
    bench.lane.push(stream, final(1))
    assert not stream.acked.is_set()
    bench.broker.is_answering.set()
    await bench.pass_time()
    assert stream.acked.is_set()
    assert bench.broker.log == ["a0:0+1", "a0:1+0."]


async def test_a_mark_returns_when_it_is_acknowledged(bench: Bench) -> None:
    bench.broker.is_answering.clear()
    marked = asyncio.create_task(bench.lane.mark(record("admitted")))
    await bench.pass_time()
    assert bench.broker.sends == [["admitted"]]
    assert not marked.done()
    bench.broker.is_answering.set()
    await marked
    assert bench.broker.log == ["admitted"]


async def test_a_waiting_mark_goes_before_waiting_tokens(bench: Bench) -> None:
    bench.broker.is_answering.clear()
    bench.lane.push(bench.stream("a"), tokens(0))
    await bench.pass_time()
    bench.lane.push(bench.stream("b"), tokens(0))
    marked = asyncio.create_task(bench.lane.mark(record("admitted")))
    await bench.pass_time()
    bench.broker.is_answering.set()
    await marked
    assert bench.broker.sends == [["a0:0+1"], ["admitted", "b0:0+1"]]


async def test_the_known_end_of_the_topic_follows_the_acknowledgements(bench: Bench) -> None:
    bench.broker.log += ["of another"] * 7
    bench.broker.is_answering.clear()
    bench.lane.push(bench.stream(), tokens(0))
    await bench.pass_time()
    assert bench.lane.end_offset == 0
    bench.broker.is_answering.set()
    await bench.pass_time()
    assert bench.lane.end_offset == 8


async def test_a_failed_send_ends_the_lane(bench: Bench) -> None:
    failure = bench.broker.failure = BrokerUnavailable("no answer")
    stream = bench.stream()
    bench.lane.push(stream, tokens(0))
    await bench.pass_time()
    bench.broker.failure = None
    bench.lane.push(stream, tokens(1))
    await bench.pass_time(INTERVAL_S)
    assert bench.failures == [failure]
    assert len(bench.broker.sends) == 1
    assert not stream.acked.is_set()


async def test_a_stopped_lane_finishes_what_is_in_flight_and_sends_no_more(bench: Bench) -> None:
    stream = bench.stream()
    bench.broker.is_answering.clear()
    bench.lane.push(stream, tokens(0))
    await bench.pass_time()
    bench.lane.push(stream, tokens(1))
    stopping = asyncio.create_task(bench.lane.stop())
    await bench.pass_time(INTERVAL_S)
    assert not stopping.done()
    bench.broker.is_answering.set()
    await stopping
    assert bench.broker.log == ["a0:0+1"]


async def test_a_send_that_the_broker_does_not_answer_is_given_up_in_time(bench: Bench) -> None:
    bench.broker.is_answering.clear()
    bench.lane.push(bench.stream(), tokens(0))
    await bench.pass_time()
    await bench.lane.stop(timeout_s=0.01)
    bench.broker.is_answering.set()
    await bench.pass_time()
    assert bench.broker.log == []
