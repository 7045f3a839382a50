from pathlib import Path
from typing import Any

import msgspec
import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from models.catalog import LoadedModel
from models.gguf import GGUFFile
from models.tokenizer import BYTE_OF_CODE_POINT, Tokenizer
from models.vocabulary import Vocabulary
from schemas.errors import InvalidValue, ModelFileError
from tests.models.gguf_writer import METADATA, write_gguf

# The characters that the default vocabulary has no token for; found by listing its missing bytes.
UNSPELLABLE = "\x04\x06\x13\x14\x16\x1d"

any_text = st.text(st.characters(exclude_categories=["Cs"]))
spellable_text = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=UNSPELLABLE, max_codepoint=0x3FFFF)
)
token_ids = st.lists(st.integers(0, 49151), max_size=40)
special_or_not = st.sampled_from(
    ["<|im_end|>", "<|im_start|>", "<|im_", "end|>", "<repo_name>", " ", "a", "<", "\n", "é"]
)


@pytest.fixture(scope="module")
def reference(model: LoadedModel) -> tokenizers.Tokenizer:
    """The Rust tokenizer as transformers sets it up: it knows the special tokens, ours does not."""
    vocabulary = model.tokenizer.vocabulary
    merges = [(left, right) for left, right in (line.split(" ") for line in vocabulary.merges)]
    bpe = tokenizers.models.BPE(vocab={token: i for i, token in enumerate(vocabulary.tokens)}, merges=merges)
    reference = tokenizers.Tokenizer(bpe)
    reference.pre_tokenizer = model.tokenizer._bpe.pre_tokenizer
    reference.decoder = tokenizers.decoders.ByteLevel()
    special = sorted(vocabulary.special_token_ids)
    reference.add_special_tokens(
        [tokenizers.AddedToken(vocabulary.tokens[i], special=True, normalized=False) for i in special]
    )
    return reference


def tiny_tokenizer(tmp_path: Path, **changes: Any) -> Tokenizer:
    return Tokenizer(Vocabulary.from_gguf(GGUFFile.open(write_gguf(tmp_path / "tiny.gguf", **changes))))


def test_token_ids_are_those_of_transformers(tokenizer: Tokenizer, oracle: dict[str, list[dict[str, Any]]]) -> None:
    for case in oracle["texts"]:
        assert tokenizer.encode(case["text"], special=False) == case["token_ids"], case["text"]


def test_the_byte_alphabet_is_that_of_the_byte_level_pre_tokenizer() -> None:
    assert sorted(map(chr, BYTE_OF_CODE_POINT)) == sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    for byte in range(0x80):  # what the bindings show of the mapping itself
        [(piece, _)] = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(chr(byte))
        assert BYTE_OF_CODE_POINT[ord(piece)] == byte


@given(text=spellable_text)
@example(text="nul\x00 and \ufeff and \uffff and \U0003ffff")
def test_decoding_gives_the_text_that_was_encoded(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, special=False)) == text


@given(text=any_text)
@example(text=f"a{UNSPELLABLE}b\U00041000")
def test_a_character_without_a_token_becomes_a_replacement_and_never_vanishes(tokenizer: Tokenizer, text: str) -> None:
    decoded = tokenizer.decode(tokenizer.encode(text, special=False))
    assert len(decoded) == len(text)
    assert all(ours in (theirs, "\ufffd") for ours, theirs in zip(decoded, text, strict=True))


@given(parts=st.lists(special_or_not | any_text))
def test_text_never_becomes_a_special_token_unless_asked(tokenizer: Tokenizer, parts: list[str]) -> None:
    assert not tokenizer.special_token_ids.intersection(tokenizer.encode("".join(parts), special=False))


@given(parts=st.lists(special_or_not | spellable_text))
def test_special_tokens_are_found_as_the_reference_finds_them(
    tokenizer: Tokenizer, reference: tokenizers.Tokenizer, parts: list[str]
) -> None:
    text = "".join(parts)
    assert tokenizer.encode(text, special=True) == reference.encode(text).ids


@given(ids=token_ids, skip_special=st.booleans())
def test_any_ids_decode_as_the_reference_decodes_them(
    tokenizer: Tokenizer, reference: tokenizers.Tokenizer, ids: list[int], skip_special: bool
) -> None:
    assert tokenizer.decode(ids, skip_special=skip_special) == reference.decode(ids, skip_special_tokens=skip_special)


@given(text=any_text)
@example(text="-" * 5000)
def test_the_cheap_bound_is_never_above_the_number_of_tokens(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text, special=False))


@pytest.mark.parametrize("text", ["12", "a1", " 7", "1 2", " ½", " ٣٤", "x²³", "Ⅷ①"])
def test_each_numeral_stands_alone_in_every_script(tokenizer: Tokenizer, text: str) -> None:
    alone = [token for char in text for token in tokenizer.encode(char, special=False)]
    assert tokenizer.encode(text, special=False) == alone


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff", "\udc80\ud83d\ude00"])
def test_a_lone_surrogate_is_refused_with_its_place(tokenizer: Tokenizer, text: str) -> None:
    for special in (False, True):
        with pytest.raises(InvalidValue, match=r"lone surrogate U\+D"):
            tokenizer.encode(text, special=special)


def test_an_id_outside_the_vocabulary_is_refused(tokenizer: Tokenizer) -> None:
    for token_id in (-1, tokenizer.vocab_size):
        with pytest.raises(InvalidValue, match="outside the vocabulary"):
            tokenizer.token_bytes(token_id)


def test_user_defined_tokens_are_text_with_a_token_of_its_own(tmp_path: Path) -> None:
    tiny = tiny_tokenizer(tmp_path)
    assert tiny.encode("a<think>hello", special=False) == [64, 258, 260, 75, 78]
    assert tiny.decode([258, 260]) == "<think>hel"
    assert tiny.decode([256, 258, 257], skip_special=False) == "<|im_start|><think><|im_end|>"


def test_an_unknown_pre_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="'llama-bpe' is not supported; supported: smollm"):
        tiny_tokenizer(tmp_path, tokenizer__ggml__pre="llama-bpe")


@pytest.mark.parametrize("merge", ["he", " x", "h nothing", "h zz"])
def test_merges_that_do_not_fit_the_tokens_are_refused(tokenizer: Tokenizer, merge: str) -> None:
    vocabulary = msgspec.structs.replace(tokenizer.vocabulary, merges=[merge])
    with pytest.raises(ModelFileError, match="merge"):
        Tokenizer(vocabulary)


def test_of_special_tokens_inside_each_other_the_longest_is_found(tmp_path: Path) -> None:
    tokens = [*METADATA["tokenizer.ggml.tokens"][:256], "[[", "[[[", "x[[[", "he", "hel"]
    tiny = tiny_tokenizer(
        tmp_path, tokenizer__ggml__tokens=tokens, tokenizer__ggml__token_type=[1] * 256 + [3] * 3 + [1] * 2
    )
    assert tiny.split_special("[[[[ax[[[[[") == ["", "[[[", "[a", "x[[[", "", "[[", ""]
    assert tiny.encode("[[[a", special=True) == [257, 64]


def test_a_vocabulary_without_special_tokens_works(tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.vocabulary
    plain = Tokenizer(msgspec.structs.replace(vocabulary, kinds=[1] * len(vocabulary.kinds)))
    assert plain.encode("a<|im_end|>", special=True) == tokenizer.encode("a<|im_end|>", special=False)
