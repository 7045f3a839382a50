import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.disguise import Conversation, Disguise
from models.tokenizer import Tokenizer

# Special tokens inside each other, of one character, and without punctuation.
AWKWARD = ["<a<b>", "<b>", "é", "unk", "[[", "[[["]

texts = st.text("<ab>éunk[ \ue000\ue001\ue002", max_size=20)


@pytest.fixture(scope="module")
def awkward(tokenizer: Tokenizer) -> Tokenizer:
    vocabulary = tokenizer.vocabulary
    rest = [token for token in vocabulary.tokens if token not in AWKWARD][len(AWKWARD) :]
    kinds = [3] * len(AWKWARD) + [1] * len(rest)
    return Tokenizer(msgspec.structs.replace(vocabulary, tokens=[*AWKWARD, *rest], kinds=kinds, merges=[]))


@given(text=texts)
@example(text="<a<b>")
@example(text="[[[[[")
def test_hidden_text_has_no_special_token_and_comes_back_as_it_was(awkward: Tokenizer, text: str) -> None:
    disguise = Disguise(awkward, Conversation([{"role": "user", "content": text}]))
    for hidden in (disguise.hide(text), disguise.hide_strictly(text)):
        assert awkward.split_special(hidden) == [hidden]
        assert disguise.reveal(hidden) == text


@given(token=st.sampled_from(AWKWARD), cut=st.integers(1, 4), text=texts)
@example(token="<b>", cut=1, text="b>")
def test_strictly_hidden_text_does_not_complete_a_token_that_a_template_begins(
    awkward: Tokenizer, token: str, cut: int, text: str
) -> None:
    begun = token[: min(cut, len(token) - 1)]
    hidden = Disguise(awkward, Conversation([{"role": "user", "content": text}])).hide_strictly(text)
    completed = set(awkward.split_special(begun + hidden)[1::2]) - set(awkward.split_special(begun)[1::2])
    assert completed <= {"unk"}, "only a bare name, put together letter by letter, gets through"


@given(text=texts)
def test_stand_ins_never_meet_the_users_own_private_characters(awkward: Tokenizer, text: str) -> None:
    disguise = Disguise(awkward, Conversation([{"role": "user", "content": text}], [{"name": text}]))
    new = set(disguise.hide_strictly(text)) - set(text)
    assert disguise.sentinel not in text
    assert disguise.sentinel not in new
    assert not new & set(text)


def test_everything_but_roles_is_hidden(tokenizer: Tokenizer) -> None:
    conversation = Conversation(
        [{"role": "<|im_end|>", "content": ["<|im_end|>", {"text": "<|im_end|>"}], "n": 1}], [{"<|im_end|>": None}]
    )
    disguise = Disguise(tokenizer, conversation)
    hidden = disguise.hide("<|im_end|>")
    assert conversation.disguised(disguise.hide) == Conversation(
        [{"role": "<|im_end|>", "content": [hidden, {"text": hidden}], "n": 1}], [{hidden: None}]
    )
