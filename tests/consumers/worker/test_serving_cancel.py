"""How a request ends that is cancelled while a worker serves it, with an engine that says what the test wants."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.journal import ChoiceProgress, Progress
from consumers.worker.piece import Ending
from consumers.worker.results import result
from schemas.claims import ClaimCheck
from schemas.envelope import Status
from schemas.errors import RequestCancelled
from schemas.tokens import Admitted
from tests.consumers.worker.builders import ACCEPTED_AT_MS, SOURCE, refusal, running, sequence
from tests.consumers.worker.serving_bench import Bench, served

ASKED = RequestCancelled("the request was cancelled: enough").body
CLAIM = ClaimCheck(object="bucket/key", sha256="0" * 64, num_bytes=9)
CANCELLED = Ending("cancelled", ASKED)


async def test_a_running_request_keeps_what_it_has_said_with_the_text_that_was_held_back() -> None:
    request = running(sequence())

    async def script(bench: Bench, _: Any) -> None:
        await bench.engine.submitted.wait()
        bench.engine.say(0)
        bench.engine.say(0)
        request.cancel(ASKED)

    bench, ending = await served(request, script)
    assert ending == CANCELLED
    assert len(bench.engine.cancelled) == 1
    assert request.choices[0].text == "<0><1>held"
    bench.check(request, ending)


async def test_one_that_is_cancelled_before_it_begins_is_never_admitted() -> None:
    request = running(sequence(num_choices=2))
    request.cancel(ASKED)

    async def script(*_: Any) -> None:
        """It is over before anything can be done."""

    bench, ending = await served(request, script)
    assert ending == CANCELLED
    assert not any(isinstance(record, Admitted) for record in bench.sent)
    assert not bench.engine.submitted.is_set()
    bench.check(request, ending)


async def test_one_that_is_cancelled_between_its_mark_and_its_first_step_computes_nothing() -> None:
    request = running(sequence())

    async def script(bench: Bench, _: Any) -> None:
        while not request.has_admission_mark:  # noqa: ASYNC110 (a flag that sets no event)
            await asyncio.sleep(0)
        request.cancel(ASKED)

    bench, ending = await served(request, script)
    assert ending == CANCELLED
    bench.check(request, ending)


async def test_a_choice_that_has_ended_keeps_its_end() -> None:
    request = running(sequence(num_choices=3))

    async def script(bench: Bench, _: Any) -> None:
        await bench.engine.submitted.wait()
        bench.engine.say(1, finish_reason="stop")
        request.cancel(ASKED)

    bench, ending = await served(request, script)
    assert ending == CANCELLED
    assert [choice.finish_reason for _, choice in sorted(request.choices.items())] == [
        "cancelled",
        "stop",
        "cancelled",
    ]
    bench.check(request, ending)


async def test_a_cancel_after_the_last_token_is_void() -> None:
    request = running(sequence())

    async def script(bench: Bench, _: Any) -> None:
        await bench.engine.submitted.wait()
        bench.engine.say(0, finish_reason="stop")
        request.cancel(ASKED)

    bench, ending = await served(request, script)
    assert ending == Ending("completed")
    assert bench.engine.cancelled == []
    bench.check(request, ending)


@pytest.mark.parametrize("is_before", [True, False], ids=["cancelled before", "cancelled while it waits"])
async def test_a_storage_that_is_away_holds_no_cancel_up(monkeypatch: pytest.MonkeyPatch, *, is_before: bool) -> None:
    monkeypatch.setattr("consumers.worker.serving._STOP_S", 0.01)
    request = running(msgspec.structs.replace(sequence(), claim=CLAIM))
    if is_before:
        request.cancel(ASKED)

    async def script(bench: Bench, _: Any) -> None:
        await bench.claims.asked.wait()
        request.cancel(ASKED)

    bench, ending = await served(request, script)
    assert ending == CANCELLED
    assert not bench.engine.submitted.is_set()
    bench.check(request, ending)


async def test_one_that_is_cancelled_while_its_content_comes_is_made_whole() -> None:
    request = running(msgspec.structs.replace(sequence(), prompt_token_ids=[], claim=CLAIM))

    async def script(bench: Bench, _: Any) -> None:
        await bench.claims.asked.wait()
        request.cancel(ASKED)
        bench.claims.is_there.set()

    _, ending = await served(request, script)
    assert ending == CANCELLED
    assert request.usage.prompt_tokens == 3


@pytest.mark.parametrize("reason", ["stop", "cancelled"])
async def test_what_a_predecessor_has_logged_as_the_end_is_the_end(reason: Any) -> None:
    """Its final deltas are in the log, its result is not: a later cancel changes nothing."""
    status: Status = "completed" if reason == "stop" else "expired"
    choice = ChoiceProgress(token_ids=[7], text="x", finish_reason=reason)
    request = running(sequence(), Progress(source=SOURCE, first_offset=1, choices={0: choice}, status=status))
    request.cancel(ASKED)

    async def script(*_: Any) -> None:
        """It is over before anything can be done."""

    bench, ending = await served(request, script)
    assert ending == Ending(status)
    assert bench.sent == []


async def test_what_a_predecessor_has_said_is_kept() -> None:
    choice = ChoiceProgress(token_ids=[7, 8], text="xy")
    request = running(sequence(), Progress(source=SOURCE, first_offset=1, choices={0: choice}))
    request.cancel(ASKED)

    async def script(*_: Any) -> None:
        """It is over before anything can be done."""

    bench, ending = await served(request, script)
    assert ending == CANCELLED
    assert [(delta.index, delta.finish_reason) for delta in bench.deltas] == [(2, "cancelled")]
    assert result(request, ending, now_ms=ACCEPTED_AT_MS, build="b").choices[0].token_ids == [7, 8]


async def test_cancelling_twice_is_cancelling_once() -> None:
    request = running(sequence())

    async def script(bench: Bench, _: Any) -> None:
        await bench.engine.submitted.wait()
        request.cancel(ASKED)
        request.cancel(RequestCancelled("again").body)

    _, ending = await served(request, script)
    assert ending == CANCELLED


async def test_an_engine_that_hangs_holds_no_cancel_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumers.worker.serving._STOP_S", 0.01)
    request = running(sequence())

    async def script(bench: Bench, _: Any) -> None:
        await bench.engine.submitted.wait()
        request.cancel(ASKED)

    bench, ending = await served(request, script, hangs=True)
    assert ending == CANCELLED
    assert len(bench.engine.dropped) == 1
    bench.check(request, ending)


async def test_a_refused_request_says_why_it_was_refused_also_when_it_was_cancelled() -> None:
    request = running(refusal())
    request.cancel(ASKED)

    async def script(*_: Any) -> None:
        """It is over before anything can be done."""

    _, ending = await served(request, script)
    assert ending.status == "failed"
    assert ending.error is not None
    assert ending.error.code == "model_not_found"


steps = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([None, None, None, "stop", "length"])), max_size=12)


@settings(deadline=None, max_examples=100)
@given(steps, st.integers(0, 12))
def test_whenever_the_cancel_comes_stream_and_result_agree(said: list[tuple[int, Any]], cancelled_at: int) -> None:
    """Completed if every choice had ended before, else cancelled; tokens, text and ends are in both alike."""
    request = running(sequence(num_choices=3))

    async def script(bench: Bench, serving: Any) -> None:
        await bench.engine.submitted.wait()
        for number, (choice, finish_reason) in enumerate(said):
            if number == cancelled_at:
                request.cancel(ASKED)
            await asyncio.sleep(0)
            if choice in bench.engine._lengths:
                bench.engine.say(choice, finish_reason=finish_reason)
        request.cancel(ASKED)

    bench, ending = asyncio.run(served(request, script))
    has_all = all(choice.finish_reason in ("stop", "length") for choice in request.choices.values())
    assert ending == (Ending("completed") if has_all else CANCELLED)
    bench.check(request, ending)
