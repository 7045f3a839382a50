"""The client against the real broker, with gate and worker played record by record."""

import asyncio
import gc
from datetime import UTC, datetime

import pytest

from headrace import Client, Delta, TokenStream
from headrace.client.link import connected
from runtime.kafka import partition_for
from schemas.errors import (
    BrokerUnavailable,
    ErrorBody,
    HeadraceError,
    InvalidValue,
    NoAnswer,
    RequestFailed,
    SettingsError,
)
from schemas.requests import ChatRequest, Message
from schemas.settings import Settings
from tests.integration.responder import Asked, Responder

pytestmark = pytest.mark.integration


class Reading:
    """A stream that is read in the background."""

    def __init__(self, stream: TokenStream) -> None:
        self.stream = stream
        self.deltas: list[Delta] = []
        self._new = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for delta in self.stream:
            self.deltas.append(delta)
            self._new.set()

    async def first(self) -> Delta:
        await self._new.wait()
        return self.deltas[0]

    async def end(self) -> str:
        """Read to the end; the joined text."""
        await self._task
        return self.text

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def indexes(self) -> list[int]:
        return [index for delta in self.deltas for index in range(delta.index, delta.next_index)]


async def test_deltas_arrive_before_the_request_has_ended(client: Client, responder: Responder) -> None:
    reading = Reading(client.stream("hello"))
    asked = await responder.asked()
    await responder.delta(asked, 0, "wor")
    assert (await reading.first()).text == "wor"
    result_so_far = reading.stream.result
    assert result_so_far is None
    await responder.delta(asked, 1, "ld", finish_reason="stop")
    await responder.result(asked, "world", num_tokens=2)
    assert await reading.end() == "world"
    assert reading.stream.result is not None
    assert reading.stream.result.text == "world"
    assert reading.deltas[-1].finish_reason == "stop"


async def test_a_request_carries_what_was_asked_for(client: Client, responder: Responder) -> None:
    reading = Reading(client.stream("hi", session="s-1", max_tokens=7, temperature=0.0, stop=["x"], ttl_s=9.5))
    asked = await responder.asked()
    assert asked.key == b"s-1"
    assert asked.partition == partition_for(b"s-1", 3)
    assert asked.request.id == reading.stream.request_id
    assert (asked.request.session, asked.request.max_tokens, asked.request.temperature) == ("s-1", 7, 0.0)
    assert (asked.request.stop, asked.request.ttl_s) == (["x"], 9.5)
    assert [name for name, _ in asked.headers] == ["traceparent"]
    await responder.result(asked, "done")
    await reading.end()


async def test_bulk_requests_take_the_bulk_lane_but_a_session_has_one_lane(
    client: Client, responder: Responder
) -> None:
    for session, topic in [(None, responder.names.requests("bulk")), ("s", responder.names.requests())]:
        reading = Reading(client.stream("hi", session=session, priority_class="bulk"))
        asked = await responder.asked()
        assert asked.topic == topic
        await responder.result(asked, "done")
        await reading.end()


async def test_a_repeat_after_a_takeover_in_mid_stream_is_not_shown(client: Client, responder: Responder) -> None:
    reading = Reading(client.stream("hi"))
    asked = await responder.asked()
    first = await responder.take_over(asked)
    await responder.delta(asked, 0, "a", epoch=first)
    await responder.delta(asked, 1, "b", epoch=first)
    second = await responder.take_over(asked, previous_epoch=first)
    await responder.delta(asked, 2, "STALE", epoch=first, finish_reason="stop")
    await responder.delta(asked, 1, "b", epoch=second)
    await responder.delta(asked, 2, "c", epoch=second)
    await responder.delta(asked, 2, "c", epoch=second)
    await responder.delta(asked, 3, "d", epoch=second, finish_reason="stop")
    await responder.result(asked, "abcd", num_tokens=4)
    assert await reading.end() == "abcd"
    assert reading.indexes == [0, 1, 2, 3]


async def test_a_worker_that_was_fenced_before_the_request_is_not_believed(
    client: Client, responder: Responder
) -> None:
    """The newest takeover stands before the place where the reader begins; it is known from the records before it."""
    warm_up = Reading(client.stream("warm up", session="one-partition"))
    asked = await responder.asked()
    first = await responder.take_over(asked)
    second = await responder.take_over(asked, previous_epoch=first)
    await responder.result(asked, "done")
    await warm_up.end()

    reading = Reading(client.stream("hi", session="one-partition"))
    asked = await responder.asked()
    await responder.delta(asked, 0, "STALE", epoch=first)
    await responder.delta(asked, 0, "right", epoch=second, finish_reason="stop")
    await responder.result(asked, "right")
    assert await reading.end() == "right"


async def test_a_takeover_of_long_ago_is_known_from_the_group_s_commits(client: Client, responder: Responder) -> None:
    warm_up = Reading(client.stream("warm up", session="one-partition"))
    asked = await responder.asked()
    first = await responder.take_over(asked)
    second = await responder.take_over(asked, previous_epoch=first)
    await responder.commit_epoch(asked, second)
    for index in range(100):
        await responder.delta(asked, index, "x", epoch=second)
    await responder.result(asked, "done")
    await warm_up.end()

    reading = Reading(client.stream("hi", session="one-partition"))
    asked = await responder.asked()
    await responder.delta(asked, 0, "STALE", epoch=first)
    await responder.delta(asked, 0, "right", epoch=second, finish_reason="stop")
    await responder.result(asked, "right")
    assert await reading.end() == "right"


async def test_the_epoch_in_force_at_any_offset_is_found(settings: Settings, responder: Responder) -> None:
    asked = Asked("r", b"r", 1, ChatRequest(model="m", messages=[Message(role="user", content="x")]))
    marks: list[int] = []
    for _ in range(3):
        await responder.delta(asked, 0, "between")
        marks.append(await responder.take_over(asked, previous_epoch=marks[-1] if marks else None))
    source = responder.source(asked)
    async with connected(settings) as link:
        assert await link.epochs.at(1, 100) == {}
        await responder.commit_epoch(asked, marks[-1])
        for offset in range(marks[-1] + 3):
            before = [mark for mark in marks if mark < offset]
            assert await link.epochs.at(1, offset) == ({source: before[-1]} if before else {})
        assert await link.epochs.at(0, 100) == {}


async def test_a_result_without_deltas_is_shown_as_one(client: Client, responder: Responder) -> None:
    reading = Reading(client.stream("hi"))
    asked = await responder.asked()
    await responder.result(asked, "whole answer", num_tokens=3)
    assert await reading.end() == "whole answer"
    assert reading.indexes == [0, 1, 2]


async def test_what_is_missing_behind_a_gap_comes_from_the_result(client: Client, responder: Responder) -> None:
    reading = Reading(client.stream("hi"))
    asked = await responder.asked()
    await responder.delta(asked, 0, "one ")
    await responder.delta(asked, 2, "three", finish_reason="stop")
    await responder.result(asked, "one two three", num_tokens=3)
    assert await reading.end() == "one two three"
    assert reading.indexes == [0, 1, 2]


async def test_choices_are_told_apart(client: Client, responder: Responder) -> None:
    reading = Reading(client.stream("hi", n=2))
    asked = await responder.asked()
    assert asked.request.n == 2
    for choice, text in [(1, "b"), (0, "a"), (1, "B"), (0, "A")]:
        index = 0 if text.islower() else 1
        await responder.delta(asked, index, text, choice=choice, finish_reason="stop" if index else None)
    await responder.result(asked, "aA", "bB", num_tokens=2)
    await reading.end()
    assert "".join(delta.text for delta in reading.deltas if delta.choice == 1) == "bB"


async def test_a_failed_request_raises_after_its_last_delta(client: Client, responder: Responder) -> None:
    reading = Reading(client.stream("hi"))
    asked = await responder.asked()
    await responder.delta(asked, 0, "partial")
    error = ErrorBody(message="the model is gone", type="server_error", code="engine_fault", param="model")
    await responder.result(asked, status="failed", error=error)
    with pytest.raises(RequestFailed, match="the model is gone") as caught:
        await reading.end()
    assert (caught.value.code, caught.value.param) == ("engine_fault", "model")
    assert caught.value.result.request_id == asked.request_id
    assert reading.text == "partial"
    assert reading.stream.result is caught.value.result


@pytest.mark.parametrize("status", ["cancelled", "expired"])
async def test_every_other_end_raises_as_well(client: Client, responder: Responder, status: str) -> None:
    waiting = asyncio.create_task(client.complete("hi"))
    await responder.result(await responder.asked(), status=status)  # type: ignore[arg-type] # one of the parameters
    with pytest.raises(RequestFailed, match=status) as caught:
        await waiting
    assert caught.value.code == status


async def test_complete_gives_the_result(client: Client, responder: Responder) -> None:
    waiting = asyncio.create_task(client.complete([{"role": "user", "content": "hi"}]))
    asked = await responder.asked()
    await responder.delta(asked, 0, "yes", finish_reason="stop")
    await responder.result(asked, "yes")
    assert (await waiting).text == "yes"


async def test_streams_of_one_partition_do_not_mix(client: Client, responder: Responder) -> None:
    readings = [Reading(client.stream("hi", session="same")) for _ in range(5)]
    asked = [await responder.asked() for _ in readings]
    for step in range(3):
        for number, one in enumerate(asked):
            await responder.delta(one, step, f"{number}", finish_reason="stop" if step == 2 else None)
    for number, one in enumerate(asked):
        await responder.result(one, f"{number}" * 3, num_tokens=3)
    order = {one.request_id: number for number, one in enumerate(asked)}
    for reading in readings:
        assert await reading.end() == f"{order[reading.stream.request_id]}" * 3


async def test_a_result_of_another_tenant_is_not_ours(client: Client, responder: Responder) -> None:
    reading = Reading(client.stream("hi"))
    asked = await responder.asked()
    await responder.result(asked, "of another", tenant="other")
    await responder.delta(asked, 0, "ours", finish_reason="stop")
    await responder.result(asked, "ours")
    assert await reading.end() == "ours"


async def test_garbage_in_the_log_is_passed_over(client: Client, responder: Responder) -> None:
    reading = Reading(client.stream("hi"))
    asked = await responder.asked()
    for value in (b"\xff\xfe{", b"", None, b'{"schema":"delta/1"}', b"[]"):
        await responder.raw_token(asked, value)
    await responder.delta(asked, 0, "fine", finish_reason="stop")
    await responder.result(asked, "fine")
    assert await reading.end() == "fine"


async def test_a_reader_that_does_not_read_holds_up_nobody_and_loses_nothing(
    client: Client, responder: Responder
) -> None:
    slow = client.stream("slow", session="same")
    first = asyncio.create_task(anext(slow))
    slow_asked = await responder.asked()
    await responder.delta(slow_asked, 0, "0 ")
    await first
    for step in range(1, 200):
        await responder.delta(slow_asked, step, f"{step} ")
    fast = Reading(client.stream("fast", session="same"))
    fast_asked = await responder.asked()
    await responder.delta(fast_asked, 0, "fast", finish_reason="stop")
    await responder.result(fast_asked, "fast")
    assert await fast.end() == "fast"
    whole = "".join(f"{step} " for step in range(200))
    await responder.result(slow_asked, whole, num_tokens=200)
    assert "0 " + "".join([delta.text async for delta in slow]) == whole


async def test_a_request_that_was_sent_again_gets_the_first_one_s_result(client: Client, responder: Responder) -> None:
    reading = Reading(client.stream("hi", request_id="mine"))
    asked = await responder.asked()
    offset = await responder.result(asked, "once")
    await reading.end()
    again = Reading(client.stream("hi", request_id="mine"))
    await responder.asked()
    await responder.duplicate(asked, offset)
    assert await again.end() == "once"


async def test_a_stream_that_is_left_early_is_forgotten(client: Client, responder: Responder) -> None:
    async def leave_early() -> Asked:
        stream = client.stream("hi")
        pending = asyncio.create_task(anext(stream))
        asked = await responder.asked()
        await responder.delta(asked, 0, "a")
        await pending
        return asked

    asked = await leave_early()
    gc.collect()
    # Asyncio closes a dropped generator in a task of its own: the next answered request is behind it.
    await responder.delta(asked, 1, "b")
    reading = Reading(client.stream("next"))
    await responder.result(await responder.asked(), "x")
    await reading.end()
    assert [feed.is_idle for feed in client._connected.reader._feeds.values()] == [True] * 3
    consumer = client._connected.reader._consumer
    assert consumer.paused() == consumer.assignment()


async def test_streams_that_an_error_leaves_end_quietly_with_their_loop(
    settings: Settings, responder: Responder, caplog: pytest.LogCaptureFixture
) -> None:
    # The order in which a loop closes generators is chance: of so many streams some would meet the wrong one.
    num_streams = 12
    kept: list[TokenStream] = []

    async def leave_early() -> None:
        async with Client(settings) as client:
            kept.extend(client.stream("hi") for _ in range(num_streams))
            await asyncio.gather(*(anext(stream) for stream in kept))
            raise ZeroDivisionError

    leaving = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(leave_early())))
    for _ in range(num_streams):
        await responder.delta(await responder.asked(), 0, "a")
    with pytest.raises(ZeroDivisionError):
        await leaving
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_a_cancelled_reader_is_forgotten(client: Client, responder: Responder) -> None:
    waiting = asyncio.create_task(client.complete("hi"))
    await responder.asked()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert all(feed.is_idle for feed in client._connected.reader._feeds.values())


async def test_closing_the_client_ends_its_streams(settings: Settings, responder: Responder) -> None:
    async with Client(settings) as client:
        reading = Reading(client.stream("hi"))
        await responder.asked()
    with pytest.raises(HeadraceError, match="client was closed"):
        await reading.end()


async def test_a_client_may_be_closed_at_once_and_opened_again(settings: Settings, responder: Responder) -> None:
    client = Client(settings)
    for _ in range(3):
        async with client:
            pass
    async with client:
        waiting = asyncio.create_task(client.complete("hi"))
        await responder.result(await responder.asked(), "again")
        assert (await waiting).text == "again"


async def test_a_client_that_is_not_entered_says_how(settings: Settings) -> None:
    with pytest.raises(HeadraceError, match="async with Client"):
        Client(settings).stream("hi")


async def test_a_wrong_option_is_an_error_before_anything_is_sent(client: Client) -> None:
    with pytest.raises(InvalidValue, match="temperature"):
        client.stream("hi", temperature=99)
    with pytest.raises(InvalidValue, match="messages"):
        client.stream([])
    with pytest.raises(InvalidValue, match="temprature"):
        client.stream("hi", temprature=1)  # type: ignore[call-arg] # the mistake that is tested


async def test_when_nobody_answers_the_missing_roles_are_named(settings: Settings, responder: Responder) -> None:
    async with Client(settings, timeout_s=0.2) as client:
        with pytest.raises(NoAnswer, match=r"no gate and no pipeline and no worker is running.*headrace up"):
            await client.complete("hi")


async def test_a_broker_that_is_away_is_an_error_with_a_remedy(settings: Settings) -> None:
    with pytest.raises(BrokerUnavailable, match="headrace up"):
        async with Client(settings, bootstrap_servers="127.0.0.1:1"):
            pass


async def test_missing_topics_are_named_with_the_remedy(settings: Settings) -> None:
    with pytest.raises(SettingsError, match=r"topics are missing: nowhere\.requests.*headrace topics create"):
        async with Client(settings, namespace="nowhere"):
            pass


async def finished(client: Client, responder: Responder, *, session: str | None = None, **options: str) -> Asked:
    """A request that has come to its end: tokens 0 to 4 in deltas of 2, 2 and 1."""
    reading = Reading(client.stream("hi", session=session, **options))  # type: ignore[arg-type] # options of the tests
    asked = await responder.asked()
    await responder.delta(asked, 0, "ab", num_tokens=2)
    await responder.delta(asked, 2, "cd", num_tokens=2)
    await responder.delta(asked, 4, "e", finish_reason="stop")
    await responder.result(asked, "abcde", num_tokens=5)
    await reading.end()
    return asked


async def test_a_finished_stream_is_read_again_from_any_index(client: Client, responder: Responder) -> None:
    asked = await finished(client, responder)
    for from_index, text in [(0, "abcde"), (1, "abcde"), (2, "cde"), (4, "e"), (5, "e")]:
        reading = Reading(client.tail(asked.request_id, from_index=from_index))
        assert await reading.end() == (text if from_index < 5 else "e")


async def test_a_stream_of_a_session_is_found_with_the_session(client: Client, responder: Responder) -> None:
    asked = await finished(client, responder, session="s-7")
    assert await Reading(client.tail(asked.request_id, session="s-7")).end() == "abcde"


async def test_a_foreign_id_is_found_with_and_without_a_time(client: Client, responder: Responder) -> None:
    asked = await finished(client, responder, request_id="my-own-id")
    assert await Reading(client.tail(asked.request_id)).end() == "abcde"
    assert await Reading(client.tail(asked.request_id, since=datetime.now(UTC))).end() == "abcde"


async def test_a_stream_that_still_runs_is_followed_to_its_end(client: Client, responder: Responder) -> None:
    reading = Reading(client.stream("hi"))
    asked = await responder.asked()
    await responder.delta(asked, 0, "a")
    await reading.first()
    tail = Reading(client.tail(asked.request_id))
    await tail.first()
    await responder.delta(asked, 1, "b", finish_reason="stop")
    await responder.result(asked, "ab", num_tokens=2)
    assert await tail.end() == await reading.end() == "ab"


async def test_an_unknown_id_ends_in_an_error_and_not_in_silence(client: Client) -> None:
    with pytest.raises(NoAnswer, match="nothing was heard of request nobody-s"):
        await Reading(client.tail("nobody-s", timeout_s=0.3)).end()
