import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.stop import StopResult, StopStrings
from schemas.errors import InvalidValue

# Two letters only, so that stop strings overlap themselves, each other and the pieces' borders all the time.
stop_strings = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)
pieces = st.lists(st.text("abc", max_size=9), max_size=12)


def reference(text: str, stops: list[str]) -> StopResult:
    """Character by character over the whole text: the first moment at which it ends with a stop string."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return StopResult(text[: end - len(longest)], longest)
    return StopResult(text)


def run(parts: list[str], stops: list[str]) -> StopResult:
    watch = StopStrings(stops)
    results = [watch.feed(part) for part in parts]
    shown = "".join(result.text for result in results) + watch.flush()
    return StopResult(shown, results[-1].stop if results else None)


@given(parts=pieces, stops=stop_strings)
@example(parts=["a", "bc"], stops=["ab", "abc"])
@example(parts=["beta gam"], stops=["beta gamma"])
@example(parts=["abcde"], stops=["abcde", "bcd"])
@example(parts=["aab"], stops=["ab"])
@example(parts=["abab", "abb"], stops=["ababb"])
def test_streamed_text_stops_where_the_whole_text_would(parts: list[str], stops: list[str]) -> None:
    assert run(parts, stops) == reference("".join(parts), stops)


@given(parts=pieces, stops=stop_strings)
def test_no_text_is_shown_before_it_is_certain_and_none_is_held_longer(parts: list[str], stops: list[str]) -> None:
    watch = StopStrings(stops)
    text, shown = "", ""
    for part in parts:
        text += part
        result = watch.feed(part)
        shown += result.text
        if result.stop is not None:
            break
        begun = [text[i:] for i in range(len(text)) if any(s.startswith(text[i:]) for s in stops)]
        assert text == shown + max(begun, key=len, default="")


def test_a_stop_string_may_span_many_pieces() -> None:
    watch = StopStrings(["beta gamma"])
    assert [watch.feed(part) for part in ["alpha be", "ta", " ga", "mma delta"]] == [
        StopResult("alpha "),
        StopResult(""),
        StopResult(""),
        StopResult("", "beta gamma"),
    ]


def test_a_beginning_that_is_not_continued_is_shown_in_full() -> None:
    watch = StopStrings(["beta gamma"])
    assert watch.feed("x beta gam").text == "x "
    assert watch.feed("bit").text == "beta gambit"


def test_a_beginning_at_the_end_of_the_output_is_flushed_once() -> None:
    watch = StopStrings(["beta gamma"])
    assert watch.feed("alpha beta gam").text == "alpha "
    assert watch.flush() == "beta gam"
    assert watch.flush() == ""


def test_of_overlapping_stops_the_one_that_is_complete_first_counts() -> None:
    assert run(["xabc"], ["abc", "ab"]) == StopResult("x", "ab")
    assert run(["xabc"], ["bc", "abc"]) == StopResult("x", "abc")


def test_nothing_is_shown_after_a_stop() -> None:
    watch = StopStrings(["."])
    assert watch.feed("One. Two") == StopResult("One", ".")
    assert watch.feed(" Three") == StopResult("", ".")
    assert watch.flush() == ""


def test_without_stop_strings_all_text_passes_at_once() -> None:
    assert StopStrings([]).feed("any") == StopResult("any")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidValue, match="empty") as caught:
        StopStrings(["a", ""])
    assert caught.value.param == "stop"
