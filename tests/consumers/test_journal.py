"""The journal: which records of `tokens` count, and what they say of each request."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.journal import JournalEntry, RequestIdentity, VoidRule, epochs_at_start, rebuild
from schemas.errors import ErrorBody
from schemas.sampling import FinishReason
from schemas.tokens import (
    Admitted,
    ChunkChoice,
    ChunkMessage,
    Ended,
    JournalRecord,
    Released,
    Requeued,
    Takeover,
    TokenDelta,
)

SOURCE = "batches.m-3"
KEY = b"r1"
R1 = RequestIdentity("default", "r1", "r1")


def delta(
    index: int,
    *token_ids: int,
    epoch: int = 0,
    source: str = SOURCE,
    request_id: str = "r1",
    tenant: str = "default",
    choice: int = 0,
    finish: FinishReason | None = None,
) -> TokenDelta:
    text = "".join(f"<{token_id}>" for token_id in token_ids)
    return TokenDelta(
        id=f"chatcmpl-{request_id}",
        object="chat.completion.chunk",
        created=1,
        model="m",
        choices=[ChunkChoice(index=choice, delta=ChunkMessage(content=text), finish_reason=finish)],
        request_id=request_id,
        tenant=tenant,
        choice=choice,
        index=index,
        token_ids=list(token_ids),
        epoch=epoch,
        source=source,
    )


def takeover(previous: int | None = None, source: str = SOURCE) -> Takeover:
    return Takeover(source=source, worker="w", committed_offset=0, previous_epoch=previous)


def ended(epoch: int = 0, source: str = SOURCE) -> Ended:
    return Ended(request_id="r1", tenant="default", source=source, epoch=epoch, status="completed")


def log(*records: JournalRecord, key: bytes = KEY, start: int = 0) -> list[JournalEntry]:
    return [JournalEntry(start + place, key, record, 1000 + place) for place, record in enumerate(records)]


# The void rule


def test_a_delta_is_void_after_a_takeover_of_its_source_with_a_higher_epoch() -> None:
    rule = VoidRule()
    assert rule.accepts(0, takeover())
    assert rule.accepts(1, delta(0, 7, epoch=0))
    assert rule.accepts(2, takeover(previous=0))
    assert not rule.accepts(3, delta(1, 8, epoch=0))
    assert rule.accepts(4, delta(1, 9, epoch=2))


def test_a_takeover_of_another_source_voids_nothing() -> None:
    rule = VoidRule()
    rule.accepts(0, takeover())
    rule.accepts(5, takeover(source="batches.m.bulk-3"))
    assert rule.accepts(6, delta(0, 7, epoch=0))


def test_a_reader_that_starts_inside_the_log_goes_by_the_epochs_it_looked_up() -> None:
    rule = VoidRule({SOURCE: 90})
    assert rule.epoch_of(SOURCE) == 90
    assert not rule.accepts(100, delta(0, 7, epoch=50))
    assert rule.accepts(101, delta(0, 7, epoch=90))


@pytest.mark.parametrize(
    "mark",
    [
        Admitted(request_id="r1", source=SOURCE, epoch=0),
        ended(),
        Requeued(request_id="r1", source=SOURCE, epoch=0, count=0),
    ],
    ids=lambda mark: type(mark).__name__,
)
def test_marks_of_a_replaced_worker_are_void_like_its_deltas(mark: JournalRecord) -> None:
    rule = VoidRule({SOURCE: 5})
    assert not rule.accepts(6, mark)


def test_what_a_worker_let_go_of_counts_also_when_it_says_so_late() -> None:
    rule = VoidRule({SOURCE: 5})
    assert rule.accepts(6, Released(request_id="r1", source=SOURCE, epoch=0))


# What a journal says


def test_tokens_texts_and_attempts_are_put_together_over_takeovers() -> None:
    progress = rebuild(
        log(
            takeover(),
            Admitted(request_id="r1", source=SOURCE, epoch=0),
            delta(0, 1, epoch=0),
            delta(1, 2, 3, epoch=0),
            takeover(previous=0),
            delta(3, 99, epoch=0),
            Admitted(request_id="r1", source=SOURCE, epoch=4, attempt=1),
            delta(3, 4, epoch=4, finish="stop"),
        )
    )[R1]
    choice = progress.choices[0]
    assert (choice.token_ids, choice.text, choice.finish_reason) == ([1, 2, 3, 4], "<1><2><3><4>", "stop")
    assert progress.num_attempts == 2
    assert progress.first_offset == 1
    assert progress.first_token_ms == 1002


def test_choices_are_kept_apart() -> None:
    progress = rebuild(log(delta(0, 1, choice=0), delta(0, 2, choice=1, finish="length"), delta(1, 3, choice=0)))[R1]
    assert {index: choice.token_ids for index, choice in progress.choices.items()} == {0: [1, 3], 1: [2]}
    assert [choice.finish_reason for choice in progress.choices.values()] == [None, "length"]


def test_the_same_id_of_another_tenant_or_session_is_another_request() -> None:
    entries = [
        JournalEntry(0, b"r1", delta(0, 1)),
        JournalEntry(1, b"r1", delta(0, 2, tenant="other")),
        JournalEntry(2, b"session", delta(0, 3)),
    ]
    found = {identity: progress.choices[0].token_ids for identity, progress in rebuild(entries).items()}
    assert found == {
        R1: [1],
        RequestIdentity("other", "r1", "r1"): [2],
        RequestIdentity("default", "session", "r1"): [3],
    }


def test_an_ended_request_keeps_its_end_and_nothing_else() -> None:
    progress = rebuild(log(delta(0, 1), delta(1, 2, finish="stop"), ended()))[R1]
    assert progress.ended is not None
    assert progress.ended.status == "completed"
    assert not progress.choices


def test_the_first_source_owns_the_stream_but_any_source_can_have_ended_it() -> None:
    other = "batches.m.bulk-3"
    progress = rebuild(log(delta(0, 1), delta(0, 5, source=other), ended(source=other)))[R1]
    assert progress.source == SOURCE
    assert progress.ended is not None


def test_a_missing_delta_is_a_gap_and_nothing_behind_it_counts() -> None:
    progress = rebuild(log(delta(0, 1), delta(2, 3), delta(1, 2)))[R1]
    assert progress.has_gap
    assert progress.choices[0].token_ids == [1]


def test_a_repeated_delta_and_one_behind_the_final_one_are_skipped() -> None:
    progress = rebuild(log(delta(0, 1), delta(0, 1), delta(1, 2, finish="stop"), delta(2, 3)))[R1]
    assert progress.choices[0].token_ids == [1, 2]
    assert not progress.has_gap


def test_how_a_request_was_decided_is_kept_with_its_error() -> None:
    final = delta(0, finish="error")
    final.status, final.error = "failed", ErrorBody(message="m", type="server_error", code="engine_fault")
    progress = rebuild(log(final))[R1]
    assert (progress.status, progress.error) == ("failed", final.error)


def test_marks_alone_make_no_progress() -> None:
    assert rebuild(log(takeover(), Released(request_id="r1", source=SOURCE, epoch=0))) == {}


def test_the_first_takeover_of_each_source_names_the_epoch_before_the_start() -> None:
    other = "batches.m.bulk-3"
    entries = log(delta(0, 1), takeover(previous=40), takeover(previous=90), takeover(source=other), start=100)
    assert epochs_at_start(entries) == {SOURCE: 40}


# Any history that the protocol allows


class History:
    """Writes one source's journal as workers do, one after another, with late records of replaced ones in between."""

    def __init__(self) -> None:
        self.entries: list[JournalEntry] = []
        self.epochs: list[int] = []
        self.true: dict[str, list[int]] = {}
        self.late: list[TokenDelta] = []

    def write(self, record: JournalRecord, key: str = "") -> None:
        self.entries.append(JournalEntry(len(self.entries), key.encode(), record))

    def take_over(self) -> None:
        previous = self.epochs[-1] if self.epochs else None
        self.epochs.append(len(self.entries))
        self.write(takeover(previous=previous))

    def say(self, request_id: str, num_tokens: int, *, is_late: bool) -> None:
        said = self.true.setdefault(request_id, [])
        token_ids = [len(said) + place for place in range(num_tokens)]
        record = delta(len(said), *token_ids, epoch=self.epochs[-1], request_id=request_id)
        if is_late:
            # In flight when its writer died: it may land behind the successor's mark, or never.
            record.token_ids = [-1] * num_tokens
            self.late.append(record)
            return
        said += token_ids
        self.write(record, request_id)

    def land(self) -> None:
        if self.late and self.late[0].epoch < self.epochs[-1]:
            record = self.late.pop(0)
            self.write(record, record.request_id)


def saying(request_id: str, num_tokens: int, *, is_late: bool) -> Callable[[History], None]:
    return lambda history: history.say(request_id, num_tokens, is_late=is_late)


STEPS: list[Callable[[History], None]] = [
    *[lambda history: history.take_over()] * 2,
    *[lambda history: history.land()] * 3,
    *[saying(request_id, 1, is_late=False) for request_id in "abcd"],
    *[saying(request_id, 2, is_late=True) for request_id in "abcd"],
]


@st.composite
def histories(draw: st.DrawFn) -> History:
    history = History()
    history.take_over()
    for step in draw(st.lists(st.sampled_from(STEPS), max_size=40)):
        step(history)
    history.take_over()
    return history


@given(histories())
def test_a_successor_knows_exactly_what_was_said_before_its_mark(history: History) -> None:
    found = {
        identity.request_id: progress.choices[0].token_ids for identity, progress in rebuild(history.entries).items()
    }
    assert found == {request_id: said for request_id, said in history.true.items() if said}


@given(histories())
def test_reading_back_from_any_place_before_a_request_says_the_same_of_it(history: History) -> None:
    whole = rebuild(history.entries)
    for start in range(len(history.entries)):
        part = rebuild(history.entries[start:])
        for identity, progress in whole.items():
            if progress.first_offset >= start:
                assert part[identity] == progress
