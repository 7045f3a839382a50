"""The rules of a stream, as pure functions: whatever the log repeats or lacks, the joined deltas are the answer."""

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace.client.assembly import Assembly
from headrace.client.delta import Delta
from schemas.requests import Message
from schemas.results import Result, ResultChoice
from schemas.tokens import ChunkChoice, ChunkMessage, TokenDelta

REQUEST = "r"
WORDS = ["a", "bé", "", "🙂", "\n", "long word "]


def delta(index: int, words: list[str], *, is_last: bool = False, choice: int = 0) -> TokenDelta:
    return TokenDelta(
        id="x",
        object="chat.completion.chunk",
        created=0,
        model="m",
        choices=[
            ChunkChoice(
                index=choice,
                delta=ChunkMessage(content="".join(words)),
                finish_reason="stop" if is_last else None,
            )
        ],
        request_id=REQUEST,
        index=index,
        epoch=0,
        source="s-0",
        choice=choice,
        token_ids=list(range(index, index + len(words))),
    )


def result(*answers: list[str], **fields: Any) -> Result:
    choices = [
        ResultChoice(
            index=number,
            finish_reason="stop",
            token_ids=list(range(len(words))),
            message=Message(role="assistant", content="".join(words)),
        )
        for number, words in enumerate(answers)
    ]
    return Result(
        id="x",
        object="o",
        created=0,
        model="m",
        request_id=REQUEST,
        **{"status": "completed", "choices": choices, **fields},
    )


@st.composite
def answers_and_logs(draw: st.DrawFn) -> tuple[list[str], list[TokenDelta]]:
    """An answer, and a log of it: cut anywhere, with repeats, and with any of its deltas missing."""
    words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12))
    cuts = draw(st.lists(st.integers(1, len(words)), max_size=4, unique=True))
    borders = sorted({0, len(words), *cuts})
    log = [delta(begin, words[begin:end], is_last=end == len(words)) for begin, end in pairwise(borders)]
    kept = [one for one in log if draw(st.booleans())]
    for repeat in draw(st.lists(st.sampled_from(kept), max_size=3)) if kept else []:
        kept.insert(draw(st.integers(kept.index(repeat) + 1, len(kept))), repeat)
    return words, kept


def read(assembly: Assembly, log: list[TokenDelta], end: Result) -> list[Delta]:
    delivered = [one for record in log if (one := assembly.add(record)) is not None]
    assembly.end(end)
    return delivered + assembly.rest()


@given(answers_and_logs())
def test_the_joined_deltas_equal_the_result(case: tuple[list[str], list[TokenDelta]]) -> None:
    words, log = case
    delivered = read(Assembly(REQUEST), log, result(words))
    assert "".join(one.text for one in delivered) == "".join(words)
    assert [token for one in delivered for token in one.token_ids] == list(range(len(words)))
    assert [one.finish_reason for one in delivered].count("stop") == 1
    assert delivered[-1].finish_reason == "stop"


@given(answers_and_logs(), st.integers(0, 15))
def test_from_an_index_on_nothing_is_missing_and_no_earlier_delta_is_shown(
    case: tuple[list[str], list[TokenDelta]], from_index: int
) -> None:
    words, log = case
    delivered = read(Assembly(REQUEST, from_index=from_index), log, result(words))
    tokens = [token for one in delivered for token in one.token_ids]
    assert tokens[-1:] == [len(words) - 1]
    assert tokens == list(range(tokens[0], len(words)))
    assert tokens[0] <= min(from_index, len(words) - 1)
    assert all(one.next_index > from_index or one.finish_reason for one in delivered)


def test_it_is_whole_when_result_and_every_last_delta_were_seen() -> None:
    assembly = Assembly(REQUEST)
    assembly.add(delta(0, ["a"], is_last=True))
    assembly.end(result(["a"], ["b"]))
    was_whole = assembly.is_whole
    assembly.add(delta(0, ["b"], is_last=True, choice=1))
    assert not was_whole
    assert assembly.is_whole
    assert assembly.rest() == []


def test_a_failed_request_without_choices_is_whole_with_its_last_delta() -> None:
    assembly = Assembly(REQUEST)
    assembly.end(result(status="failed"))
    assert not assembly.is_whole
    assembly.add(delta(0, [], is_last=True))
    assert assembly.is_whole


def test_the_first_terminal_record_counts() -> None:
    assembly = Assembly(REQUEST)
    assembly.end(result(["first"]))
    assembly.end(result(["second"]))
    assert assembly.result is not None
    assert assembly.result.text == "first"


def test_nothing_follows_the_last_delta_of_a_choice() -> None:
    assembly = Assembly(REQUEST)
    assembly.add(delta(0, ["a"], is_last=True))
    assert assembly.add(delta(1, ["b"])) is None


def test_a_text_that_is_not_the_one_streamed_is_not_appended_to_it() -> None:
    """A stream cannot be taken back; the result says what holds."""
    assembly = Assembly(REQUEST)
    assembly.add(delta(0, ["streamed"]))
    (rest,) = read(assembly, [], result(["other", "text"]))
    assert (rest.text, rest.token_ids, rest.finish_reason) == ("", [1], "stop")
