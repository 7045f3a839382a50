import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.detokenizer import IncrementalDetokenizer
from models.tokenizer import Tokenizer

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"

any_ids = st.lists(st.integers(0, 49151), max_size=40)
# Bytes above 0x7f have a token each: sequences of these are broken UTF-8 of every kind.
byte_ids = st.lists(st.integers(0, 17 + 240), max_size=40)


def deltas(tokenizer: Tokenizer, token_ids: list[int], *, skip_special: bool = True) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special=skip_special)
    return [*map(detokenizer.feed, token_ids), detokenizer.flush()]


@given(token_ids=any_ids | byte_ids, skip_special=st.booleans())
@example(token_ids=[173, 223], skip_special=True)
def test_the_joined_deltas_are_the_whole_decoded(
    tokenizer: Tokenizer, token_ids: list[int], skip_special: bool
) -> None:
    joined = "".join(deltas(tokenizer, token_ids, skip_special=skip_special))
    assert joined == tokenizer.decode(token_ids, skip_special=skip_special)


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")), data=st.data())
@example(text=f"{FAMILY}! क्षत्रिय नमस्ते \U0001f1e9\U0001f1ea é", data=None)
def test_no_delta_ever_shows_half_a_code_point(tokenizer: Tokenizer, text: str, data: st.DataObject | None) -> None:
    token_ids = tokenizer.encode(text, special=False)
    if data is not None:
        token_ids = token_ids[: data.draw(st.integers(0, len(token_ids)))]
    shown = "".join(deltas(tokenizer, token_ids)[:-1])
    assert tokenizer.decode(tokenizer.encode(text, special=False)).startswith(shown)


@given(token_ids=any_ids, cut=st.integers(0, 40))
def test_a_successor_that_feeds_the_logged_ids_again_goes_on_with_the_same_text(
    tokenizer: Tokenizer, token_ids: list[int], cut: int
) -> None:
    expected = deltas(tokenizer, token_ids)
    successor = IncrementalDetokenizer(tokenizer)
    replayed = [successor.feed(token_id) for token_id in token_ids[:cut]]
    assert replayed == expected[: len(replayed)]
    assert [*map(successor.feed, token_ids[cut:]), successor.flush()] == expected[len(replayed) :]


def test_a_family_of_emoji_comes_code_point_by_code_point(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode(FAMILY, special=False)
    assert len(token_ids) > len(FAMILY)
    shown = deltas(tokenizer, token_ids)
    assert "".join(shown) == FAMILY
    assert all(delta in FAMILY for delta in shown)


def test_an_output_that_begins_in_the_middle_of_a_code_point_shows_nothing_of_the_prompt(tokenizer: Tokenizer) -> None:
    """The prompt ends with half an emoji and the model writes the other half: the output's own bytes are no text."""
    emoji = tokenizer.encode("\U0001f9ff", special=False)
    assert len(emoji) > 1
    output = [*emoji[1:], *tokenizer.encode(" ok", special=False)]
    assert "".join(deltas(tokenizer, output)).strip("\ufffd") == " ok"


@pytest.mark.parametrize("skip_special", [True, False])
def test_special_tokens_are_left_out_or_shown(tokenizer: Tokenizer, skip_special: bool) -> None:
    shown = deltas(tokenizer, [81, 2, 82, 1], skip_special=skip_special)
    assert shown == (["a", "", "b", "", ""] if skip_special else ["a", "<|im_end|>", "b", "<|im_start|>", ""])


def test_a_code_point_goes_on_across_a_special_token_that_is_left_out(tokenizer: Tokenizer) -> None:
    first, *rest = tokenizer.encode("\U0001f9ff", special=False)
    assert "".join(deltas(tokenizer, [first, 2, *rest])) == "\U0001f9ff"
