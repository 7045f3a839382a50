"""What a new owner decides of each record that it polls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.journal import ChoiceProgress, Progress
from consumers.worker.takeover import (
    Begun,
    Checkpoint,
    Damaged,
    Duplicate,
    Finished,
    Gone,
    Running,
    Untouched,
    decide,
    decode_checkpoint,
    encode_checkpoint,
)
from schemas.tokens import Ended
from tests.consumers.worker.builders import SOURCE

OFFSET = 5


def progress(**fields: object) -> Progress:
    return Progress(**{"source": SOURCE, "first_offset": 10, **fields})  # type: ignore[arg-type] # a test's shorthand


def ended(input_offset: int | None, source: str = SOURCE) -> Progress:
    mark = Ended(
        request_id="r1", tenant="default", source=source, epoch=0, status="completed", input_offset=input_offset
    )
    return progress(ended=mark)


def test_a_request_that_nobody_has_begun_is_untouched() -> None:
    assert decide(SOURCE, OFFSET, None, None) == Untouched(None)


def test_a_request_that_was_admitted_without_a_token_is_untouched_and_its_attempt_is_known() -> None:
    admitted = progress(epochs={40})
    assert decide(SOURCE, OFFSET, admitted, None) == Untouched(admitted)


def test_a_request_with_tokens_goes_on() -> None:
    begun = progress(choices={0: ChoiceProgress(token_ids=[1, 2])})
    assert decide(SOURCE, OFFSET, begun, None) == Begun(begun)


def test_a_request_whose_journal_has_a_gap_does_not_go_on() -> None:
    damaged = progress(choices={0: ChoiceProgress(token_ids=[1]), 1: ChoiceProgress(has_gap=True)})
    assert decide(SOURCE, OFFSET, damaged, None) == Damaged(damaged)


@pytest.mark.parametrize("answered", [OFFSET, None], ids=["this record", "a record that the mark does not name"])
def test_the_record_that_was_answered_is_finished(answered: int | None) -> None:
    assert decide(SOURCE, OFFSET, ended(answered), None) == Finished()


def test_another_record_of_an_id_that_has_ended_is_a_duplicate() -> None:
    assert decide(SOURCE, OFFSET, ended(OFFSET - 1), None) == Duplicate(has_ended=True)
    assert decide(SOURCE, OFFSET, ended(OFFSET, source="batches.m.bulk-3"), None) == Duplicate(has_ended=True)


def test_an_id_whose_stream_another_source_owns_is_a_duplicate() -> None:
    assert decide(SOURCE, OFFSET, progress(source="batches.m.bulk-3"), None) == Duplicate()


def test_what_the_owner_itself_knows_comes_before_the_journal() -> None:
    begun = progress(choices={0: ChoiceProgress(token_ids=[1])})
    assert decide(SOURCE, OFFSET, begun, Running(OFFSET - 1)) == Duplicate()
    assert decide(SOURCE, OFFSET, begun, Gone(OFFSET - 1, 77, 0)) == Duplicate(77, has_ended=True)


@given(st.integers(min_value=0, max_value=2**62), st.integers(min_value=0, max_value=2**62))
def test_a_checkpoint_comes_back_as_it_was(epoch: int, tokens_low: int) -> None:
    checkpoint = Checkpoint(epoch=epoch, tokens_low=tokens_low)
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


@pytest.mark.parametrize("metadata", ["", "{}", "text", '{"epoch":1}', "[1]", '{"epoch":1.5,"tokens_low":0}'])
def test_metadata_that_is_no_checkpoint_is_none(metadata: str) -> None:
    assert decode_checkpoint(metadata) is None
