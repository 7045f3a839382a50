"""Tokens become text and reasons to end, one token at a time."""

from typing import Any

import pytest

from engine.stream import Accepted, ChoiceStream
from schemas.sampling import SamplingParams
from tests.engine.tiny import EOS, TOKENIZER


def stream(**fields: Any) -> ChoiceStream:
    given: dict[str, Any] = {"max_tokens": 100, "seed": 0} | fields
    params = SamplingParams(**given)
    return ChoiceStream(TOKENIZER, params, (EOS,))


def feed(choice: ChoiceStream, text: str) -> list[Accepted]:
    return [choice.accept(byte) for byte in text.encode()]


def shown(accepted: list[Accepted]) -> str:
    return "".join(a.text for a in accepted)


def test_the_end_token_ends_and_is_not_shown() -> None:
    choice = stream()
    assert shown(feed(choice, "hi")) == "hi"
    assert choice.accept(EOS) == Accepted("", "stop", None)


def test_an_ignored_end_token_goes_by() -> None:
    choice = stream(ignore_eos=True)
    assert choice.accept(EOS) == Accepted("")
    assert shown(feed(choice, "x")) == "x"


def test_a_stop_token_is_named() -> None:
    assert stream(stop_token_ids=[5]).accept(5) == Accepted("", "stop", 5)
    assert stream(stop_token_ids=[EOS], ignore_eos=True).accept(EOS) == Accepted("", "stop", EOS)


def test_a_stop_string_over_several_tokens_is_cut_out_and_named() -> None:
    accepted = feed(stream(stop=["beta gamma"]), "alpha beta gamma")
    assert shown(accepted) == "alpha "
    assert accepted[-1] == Accepted("", "stop", "beta gamma")
    assert all(a.finish_reason is None for a in accepted[:-1])


def test_a_half_stop_string_is_shown_at_the_end() -> None:
    choice = stream(stop=["beta gamma"])
    assert shown(feed(choice, "alpha beta gam")) == "alpha "
    assert choice.accept(EOS) == Accepted("beta gam", "stop", None)


@pytest.mark.parametrize("end", ["eos", "length", "cancel"])
def test_half_a_character_is_shown_as_unknown_at_the_end(end: str) -> None:
    choice = stream(max_tokens=2 if end == "length" else 9)
    first, second = "€".encode()[:2]
    assert choice.accept(first) == Accepted("")
    if end == "length":
        assert choice.accept(second) == Accepted("\ufffd", "length")
    elif end == "eos":
        assert choice.accept(EOS) == Accepted("\ufffd", "stop")
    else:
        assert choice.flush() == "\ufffd"


def test_max_tokens_ends_with_the_last_token() -> None:
    accepted = feed(stream(max_tokens=3), "abc")
    assert [a.finish_reason for a in accepted] == [None, None, "length"]
    assert shown(accepted) == "abc"


def test_the_end_token_as_last_allowed_token_is_a_stop() -> None:
    choice = stream(max_tokens=3)
    feed(choice, "ab")
    assert choice.accept(EOS).finish_reason == "stop"


def test_nothing_stops_before_min_tokens() -> None:
    choice = stream(min_tokens=4, stop=["b"], stop_token_ids=[7])
    accepted = [*feed(choice, "ab"), choice.accept(7), *feed(choice, "b"), *feed(choice, "xb")]
    assert [a.finish_reason for a in accepted] == [None] * 5 + ["stop"]
    assert shown(accepted) == "ab\x07bx"


def test_a_successor_that_was_fed_the_same_tokens_shows_the_same_rest() -> None:
    text, fields = "one €uro, beta gam and beta gamma", {"stop": ["beta gamma"]}
    whole = [a.text for a in feed(stream(**fields), text)]
    for cut in range(len(text.encode())):
        successor = stream(**fields)
        for byte in text.encode()[:cut]:
            successor.accept(byte)
        assert [successor.accept(byte).text for byte in text.encode()[cut:]] == whole[cut:]
