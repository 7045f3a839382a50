"""One request while it runs."""

import pytest

from consumers.journal import ChoiceProgress, Progress
from consumers.worker.piece import Ending
from schemas.errors import DeadlineExceeded, EngineFault
from tests.consumers.worker.builders import SOURCE, output, refusal, running, sequence


def progress(**fields: object) -> Progress:
    return Progress(**{"source": SOURCE, "first_offset": 10, **fields})  # type: ignore[arg-type] # a test's shorthand


def test_each_output_becomes_a_piece_at_its_index() -> None:
    request = running()
    first = request.absorb(output(0, 11), 1000.0)
    second = request.absorb(output(1, 12, 13), 1200.0)
    assert first is not None
    assert second is not None
    assert (first.index, first.token_ids, first.text) == (0, [11], "<11>")
    assert (second.index, second.token_ids, second.text) == (1, [12, 13], "<12><13>")
    assert request.emitted == {0: [11, 12, 13]}
    assert (request.first_token_ms, request.last_token_ms) == (1000.0, 1200.0)


def test_a_request_is_over_when_every_choice_is_final_and_the_last_piece_closes_it() -> None:
    request = running(sequence(num_choices=2))
    first = request.absorb(output(0, 11, choice=1, finish_reason="stop", stop_reason=2), 0.0)
    assert first is not None
    assert first.closing is None
    assert request.emitted == {1: [11]}
    last = request.absorb(output(0, 12, choice=0, finish_reason="length"), 0.0)
    assert last is not None
    assert last.closing is not None
    assert last.closing.ending == Ending("completed")
    assert last.closing.usage.total_tokens == 3 + 2
    assert request.is_over
    assert request.ending == Ending("completed")


def test_what_comes_for_a_final_choice_is_dropped() -> None:
    request = running(sequence(num_choices=2))
    request.absorb(output(0, 11, finish_reason="stop"), 0.0)
    assert request.absorb(output(1, 12), 0.0) is None
    assert request.emitted == {0: [11]}


@pytest.mark.parametrize("index", [0, 2, 7])
def test_an_engine_that_skips_or_repeats_a_token_is_at_fault(index: int) -> None:
    request = running()
    request.absorb(output(0, 11), 0.0)
    with pytest.raises(EngineFault):
        request.absorb(output(index, 12), 0.0)


def test_an_error_of_the_engine_ends_the_whole_request_as_failed() -> None:
    request = running(sequence(num_choices=2))
    request.absorb(output(0, 11, choice=0), 0.0)
    error = EngineFault("a step failed").body
    assert request.absorb(output(1, choice=0, finish_reason="error", error=error), 0.0) is None
    assert request.is_over
    assert request.ending == Ending("failed", error)
    pieces = request.close(request.ending)
    assert [(piece.choice, piece.index, piece.finish_reason) for piece in pieces] == [(0, 1, "error"), (1, 0, "error")]
    assert pieces[0].closing is None
    assert pieces[1].closing is not None
    assert pieces[1].closing.ending.error == error


def test_a_deadline_ends_the_open_choices_with_what_was_produced() -> None:
    request = running(sequence(num_choices=2))
    request.absorb(output(0, 11, choice=0, finish_reason="stop"), 0.0)
    request.absorb(output(0, 12, choice=1), 0.0)
    ending = Ending("expired", DeadlineExceeded("too late").body)
    pieces = request.close(ending)
    assert [(piece.choice, piece.index, piece.finish_reason) for piece in pieces] == [(1, 1, "cancelled")]
    assert pieces[0].closing is not None
    assert pieces[0].closing.usage.completion_tokens == 2
    assert request.ending == ending


def test_a_deadline_is_void_for_what_ended_by_itself_before_the_engine_stopped_it() -> None:
    late = Ending("expired", DeadlineExceeded("too late").body)
    request = running(sequence(num_choices=2))
    request.stop_as(late)
    request.absorb(output(0, 11, choice=0, finish_reason="stop"), 0.0)
    last = request.absorb(output(0, choice=1, text="held back", finish_reason="cancelled"), 0.0)
    assert last is not None
    assert last.closing is not None
    assert (last.text, last.closing.ending, request.ending) == ("held back", late, late)
    in_time = running()
    in_time.stop_as(late)
    in_time.absorb(output(0, 11, finish_reason="stop"), 0.0)
    assert in_time.ending == Ending("completed")


def test_a_resumed_request_goes_on_behind_what_was_emitted() -> None:
    known = progress(
        epochs={40, 50},
        first_token_ms=900,
        choices={0: ChoiceProgress(token_ids=[11, 12], text="<11><12>")},
    )
    request = running(progress=known)
    assert request.attempt == 2
    assert request.emitted == {0: [11, 12]}
    piece = request.absorb(output(2, 13, finish_reason="stop"), 2000.0)
    assert piece is not None
    assert request.choices[0].text == "<11><12><13>"
    assert request.first_token_ms == 900
    assert request.usage.completion_tokens == 3


def test_final_deltas_that_were_logged_decide_how_it_ends() -> None:
    final = {0: ChoiceProgress(token_ids=[11], finish_reason="stop")}
    assert running(progress=progress(choices=final)).ending == Ending("completed")
    error = EngineFault("a step failed").body
    failed = {0: ChoiceProgress(finish_reason="error")}
    assert running(progress=progress(choices=failed, status="failed", error=error)).ending == Ending("failed", error)
    half = {0: ChoiceProgress(finish_reason="error"), 1: ChoiceProgress(token_ids=[11])}
    assert running(sequence(num_choices=2), progress=progress(choices=half)).is_decided
    late = {0: ChoiceProgress(finish_reason="cancelled")}
    assert running(progress=progress(choices=late, status="expired")).ending == Ending("expired")


def test_a_refusal_has_one_choice_and_nothing_to_run() -> None:
    request = running(refusal())
    assert request.sequence is None
    assert not request.is_over
    assert [piece.finish_reason for piece in request.close(Ending("failed"))] == ["error"]
