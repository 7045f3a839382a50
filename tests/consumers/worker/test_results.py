"""Deltas and results in OpenAI's shapes."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.journal import JournalEntry, rebuild
from consumers.worker.piece import Ending, Piece
from consumers.worker.request import RunningRequest
from consumers.worker.results import result, token_delta
from schemas.codec import JOURNAL
from schemas.errors import DeadlineExceeded
from schemas.requests import Message
from schemas.sampling import TokenLogprob
from tests.consumers.worker.builders import ACCEPTED_AT_MS, HASHES, SOURCE, output, refusal, running, sequence


def finished(request: RunningRequest, *token_ids: int) -> list[Piece]:
    """All pieces of a request that gives one token an output."""
    pieces = []
    for index, token_id in enumerate(token_ids):
        is_last = index + 1 == len(token_ids)
        given_output = output(index, token_id, finish_reason="stop" if is_last else None)
        pieces.append(request.absorb(given_output, ACCEPTED_AT_MS + 100.0 + 10.0 * index))
    return [piece for piece in pieces if piece is not None]


def test_a_chat_delta_has_openais_shape_and_its_place_in_the_stream() -> None:
    request = running()
    first, last = finished(request, 11, 12)
    encoded = msgspec.json.decode(JOURNAL.encode(token_delta(request, first)))
    assert encoded == {
        "schema": "delta/1",
        "id": "chatcmpl-r1",
        "object": "chat.completion.chunk",
        "created": ACCEPTED_AT_MS // 1000,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": "<11>"},
                "finish_reason": None,
                "logprobs": None,
            }
        ],
        "request_id": "r1",
        "index": 0,
        "token_ids": [11],
        "source": SOURCE,
        "epoch": 40,
    }
    closing = token_delta(request, last)
    assert closing.choices[0].delta == msgspec.convert({"content": "<12>"}, type(closing.choices[0].delta))
    assert (closing.finish_reason, closing.status) == ("stop", "completed")
    assert closing.usage is not None
    assert (closing.usage.prompt_tokens, closing.usage.completion_tokens) == (3, 2)


def test_a_completion_delta_has_text_in_place_of_a_message() -> None:
    request = running(sequence(chat=False))
    (only,) = finished(request, 11)
    delta = token_delta(request, only)
    assert (delta.id, delta.object, delta.choices[0].text) == ("cmpl-r1", "text_completion", "<11>")
    assert delta.choices[0].delta is msgspec.UNSET


def test_a_stop_string_is_named_in_delta_and_result() -> None:
    request = running()
    piece = request.absorb(output(0, 11, text="", finish_reason="stop", stop_reason="END"), ACCEPTED_AT_MS)
    assert piece is not None
    assert token_delta(request, piece).choices[0].stop_reason == "END"
    assert result(request, request.ending, now_ms=ACCEPTED_AT_MS, build="b").choices[0].stop_reason == "END"


def test_a_result_holds_all_that_a_session_and_a_replay_need() -> None:
    member = sequence(session="s1", turn=4, tenant="t1")
    member.messages, member.parent, member.num_base_tokens = [Message(role="user", content="hi")], "object", 2
    request = running(member)
    finished(request, 11, 12)
    terminal = result(request, request.ending, now_ms=ACCEPTED_AT_MS + 200, build="b")
    assert (terminal.id, terminal.object, terminal.status) == ("chatcmpl-r1", "chat.completion", "completed")
    assert (terminal.tenant, terminal.session, terminal.turn, terminal.parent) == ("t1", "s1", 4, "object")
    assert (terminal.prompt_token_ids, terminal.num_base_tokens) == ([1, 2, 3], 2)
    assert (terminal.messages, terminal.sampling, terminal.hashes) == (member.messages, member.sampling, HASHES)
    assert (terminal.build, terminal.source, terminal.epoch, terminal.attempts) == ("b", SOURCE, 40, 1)
    (choice,) = terminal.choices
    assert (choice.token_ids, choice.content, choice.finish_reason) == ([11, 12], "<11><12>", "stop")
    assert choice.message == Message(role="assistant", content="<11><12>")


def test_timings_count_from_acceptance_and_speed_between_tokens() -> None:
    request = running()
    request.admitted_at_ms = ACCEPTED_AT_MS + 40.0
    finished(request, 11, 12, 13)
    timings = result(request, request.ending, now_ms=ACCEPTED_AT_MS + 200, build="b").timings
    assert timings is not None
    assert (timings.queue_ms, timings.ttft_ms, timings.total_ms, timings.tokens_per_s) == (40.0, 100.0, 200.0, 100.0)


def test_a_clock_that_runs_behind_gives_no_negative_duration() -> None:
    timings = result(running(), Ending("failed"), now_ms=ACCEPTED_AT_MS - 50, build="b").timings
    assert timings is not None
    assert timings.total_ms == 0.0


def test_logprobs_are_in_delta_and_result() -> None:
    request = running()
    logprobs = [TokenLogprob(token_id=11, logprob=-0.5, top=[(11, -0.5), (4, -1.5)])]
    piece = request.absorb(output(0, 11, logprobs=logprobs, finish_reason="length"), ACCEPTED_AT_MS)
    assert piece is not None
    assert token_delta(request, piece).choices[0].logprobs == logprobs
    assert result(request, request.ending, now_ms=ACCEPTED_AT_MS, build="b").choices[0].logprobs == logprobs


def test_a_refused_request_fails_with_the_stages_error_and_no_choices() -> None:
    member = refusal()
    request = running(member)
    ending = Ending("failed", member.error)
    (piece,) = request.close(ending)
    delta = token_delta(request, piece)
    assert (delta.finish_reason, delta.token_ids, delta.error) == ("error", [], member.error)
    terminal = result(request, ending, now_ms=ACCEPTED_AT_MS, build="b")
    assert (terminal.status, terminal.error, terminal.choices, terminal.hashes) == ("failed", member.error, [], None)


def test_an_expired_request_keeps_what_was_produced_and_its_usage() -> None:
    request = running()
    request.absorb(output(0, 11), ACCEPTED_AT_MS)
    ending = Ending("expired", DeadlineExceeded("too late").body)
    request.close(ending)
    terminal = result(request, ending, now_ms=ACCEPTED_AT_MS, build="b")
    assert terminal.status == "expired"
    assert terminal.choices[0].token_ids == [11]
    assert terminal.usage.completion_tokens == 1


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completion"])
@given(texts=st.lists(st.text(max_size=5), min_size=1, max_size=12))
def test_a_successor_reads_out_of_the_deltas_what_the_result_says(chat: bool, texts: list[str]) -> None:
    request = running(sequence(chat=chat))
    entries = []
    for index, text in enumerate(texts):
        reason = "length" if index + 1 == len(texts) else None
        piece = request.absorb(output(index, 100 + index, text=text, finish_reason=reason), ACCEPTED_AT_MS)
        assert piece is not None
        encoded = JOURNAL.encode(token_delta(request, piece))
        entries.append(JournalEntry(index, b"r1", JOURNAL.decode(encoded)))
    known = rebuild(entries)[request.identity]
    successor = running(sequence(chat=chat), progress=known)
    assert successor.is_over
    assert successor.ending == request.ending
    theirs, ours = (result(one, one.ending, now_ms=ACCEPTED_AT_MS, build="b").choices for one in (successor, request))
    assert theirs == ours
