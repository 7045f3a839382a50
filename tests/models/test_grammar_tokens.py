"""The grammar library's view of a vocabulary against ours, token by token."""

import llguidance
import pytest
from hypothesis import example, given

from models.grammar_tokens import grammar_tokenizer
from models.tokenizer import Tokenizer
from tests.models.grammar_walks import allowed
from tests.models.test_tokenizer import UNSPELLABLE, any_text, spellable_text


@pytest.fixture(scope="module")
def seen(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    return grammar_tokenizer(tokenizer)


def test_every_token_has_the_same_bytes(tokenizer: Tokenizer, seen: llguidance.LLTokenizer) -> None:
    ids = range(tokenizer.vocab_size)
    assert seen.vocab_size == tokenizer.vocab_size
    assert [seen.decode_bytes([token_id]) for token_id in ids] == [tokenizer.token_bytes(i) for i in ids]


def test_the_same_tokens_are_special_and_the_same_end_a_text(
    tokenizer: Tokenizer, seen: llguidance.LLTokenizer
) -> None:
    special = {token_id for token_id in range(tokenizer.vocab_size) if seen.is_special_token(token_id)}
    assert special == tokenizer.special_token_ids
    assert tuple(seen.eos_tokens) == tokenizer.eos_token_ids


def test_a_mask_is_every_token_whose_bytes_the_grammar_can_go_on_with(
    tokenizer: Tokenizer, seen: llguidance.LLTokenizer
) -> None:
    """Against a reference that looks at each token by itself."""
    matcher = llguidance.LLMatcher(seen, llguidance.LLMatcher.grammar_from_regex(r"[a-f0-9 ]+"))
    ordinary = set(range(tokenizer.vocab_size)) - tokenizer.special_token_ids
    expected = {i for i in ordinary if set(tokenizer.token_bytes(i)) <= set(b"abcdef0123456789 ")}
    assert set(allowed(matcher)) == expected
    matcher.consume_token(min(expected))
    assert tokenizer.special_token_ids.intersection(allowed(matcher)) == set(tokenizer.eos_token_ids)


def test_text_that_spells_a_special_token_is_ordinary(tokenizer: Tokenizer, seen: llguidance.LLTokenizer) -> None:
    matcher = llguidance.LLMatcher(seen, llguidance.LLMatcher.grammar_from_regex(r"<\|im_end\|>!"))
    written: list[int] = []
    while not matcher.is_accepting():
        written.append(min(allowed(matcher)))
        assert matcher.consume_token(written[-1])
    assert not tokenizer.special_token_ids & set(written)
    assert tokenizer.decode(written) == "<|im_end|>!"


@given(text=spellable_text)
@example(text="日本 🎉\n\\")
def test_a_text_that_must_come_comes_as_the_model_would_write_it(
    tokenizer: Tokenizer, seen: llguidance.LLTokenizer, text: str
) -> None:
    assert seen.tokenize_str(text) == tokenizer.encode(text, special=False)


@given(text=any_text)
@example(text=f"a{UNSPELLABLE[0]}b")
@example(text="\U00040000")
def test_what_the_vocabulary_cannot_spell_is_never_replaced(
    tokenizer: Tokenizer, seen: llguidance.LLTokenizer, text: str
) -> None:
    spelled = seen.decode_bytes(seen.tokenize_str(text))
    assert text.encode().startswith(spelled)
    assert spelled == tokenizer.spelled_prefix(text).encode()
