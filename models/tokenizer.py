"""Text to token ids and back, from the vocabulary in the model's own file.

The Rust tokenizer here knows no special tokens: text never becomes one unless a caller asks for it, so that what a user
writes cannot open or close a turn.
"""

import re
from collections.abc import Callable, Iterable
from types import MappingProxyType

import tokenizers
from tokenizers import models, pre_tokenizers

from models.vocabulary import TokenKind, Vocabulary
from schemas.errors import InvalidValue, ModelFileError

REPLACEMENT = "\ufffd"


def _smollm() -> pre_tokenizers.PreTokenizer:
    # The order is the model's own tokenizer.json. transformers leaves Digits out when it reads a GGUF file, and so
    # differs on a space before a numeral that is not ASCII.
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


# How text is cut before merging, under the names of llama.cpp's converter. A wrong cut gives a model tokens that it
# never saw in training, without an error: so an unknown name is refused.
PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {"smollm": _smollm}


def _byte_alphabet() -> dict[int, int]:
    """GPT-2's printable stand-in of each byte, as code point -> byte (openai/gpt-2, `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {256 + index: byte for index, byte in enumerate(others)}


BYTE_OF_CODE_POINT = _byte_alphabet()


class Tokenizer:
    """Byte-level BPE over one vocabulary. Immutable; may be used by several threads.

    `special_tokens` maps the text of each special token to its id.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.special_token_ids = vocabulary.special_token_ids
        self.special_tokens = MappingProxyType({vocabulary.tokens[i]: i for i in sorted(self.special_token_ids)})
        self._special_pattern = _longest_first(self.special_tokens)
        self._bpe = _build_bpe(vocabulary)
        self._bytes: list[bytes | None] = [None] * len(vocabulary.tokens)
        self._longest_token = max(map(len, vocabulary.tokens))
        self._spelled_bytes = _spelled_bytes(vocabulary)

    @property
    def vocab_size(self) -> int:
        """Number of tokens; ids are below it. Logits may be wider, where a file pads them (`ModelSpec.vocab_size`)."""
        return len(self.vocabulary.tokens)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a generation, the file's own first."""
        return self.vocabulary.eos_token_ids

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Token ids of `text`; `special` says whether special tokens spelled in it become those tokens.

        Adds no token of its own. InvalidValue if `text` is not valid Unicode (a lone surrogate).
        """
        if not special:
            return self._encode_ordinary(text)
        token_ids: list[int] = []
        for index, piece in enumerate(self.split_special(text)):
            token_ids += [self.special_tokens[piece]] if index % 2 else self._encode_ordinary(piece)
        return token_ids

    def split_special(self, text: str) -> list[str]:
        """`text` cut at special tokens, longest match first: ordinary text at even places, special tokens at odd."""
        return self._special_pattern.split(text) if self._special_pattern else [text]

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `token_ids`; bytes that are not UTF-8 become U+FFFD, as in `bytes.decode(errors="replace")`."""
        kept = (i for i in token_ids if not (skip_special and i in self.special_token_ids))
        return b"".join(map(self.token_bytes, kept)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; a code point may be spread over several tokens."""
        if not 0 <= token_id < self.vocab_size:
            raise InvalidValue(f"Token id {token_id} is outside the vocabulary of {self.vocab_size} tokens.")
        known = self._bytes[token_id]
        if known is None:
            known = self._bytes[token_id] = _token_bytes(self.vocabulary, token_id)
        return known

    def spelled_prefix(self, text: str) -> str:
        """The longest beginning of `text` that the vocabulary has tokens for: all of it, for most texts."""
        if not text.encode().translate(None, self._spelled_bytes):
            return text
        spelled = frozenset(self._spelled_bytes)
        end = next(place for place, char in enumerate(text) if not spelled.issuperset(char.encode()))
        return text[:end]

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the tokens in `text` that costs no encoding, to refuse what cannot fit a context."""
        return -(-len(text) // self._longest_token)

    def _encode_ordinary(self, text: str) -> list[int]:
        spelled = self._spelled(text)
        return self._bpe.encode(spelled, add_special_tokens=False).ids if spelled else []

    def _spelled(self, text: str) -> str:
        """`text` with U+FFFD for what the vocabulary has no token for: the Rust tokenizer drops it without a word."""
        try:
            encoded = text.encode()
        except UnicodeEncodeError as error:
            raise InvalidValue(
                f"The text is not valid Unicode: lone surrogate U+{ord(text[error.start]):04X} at {error.start}."
            ) from error
        if not encoded.translate(None, self._spelled_bytes):
            return text
        spelled_bytes = frozenset(self._spelled_bytes)
        return "".join(char if spelled_bytes.issuperset(char.encode()) else REPLACEMENT for char in text)


def _longest_first(special_tokens: Iterable[str]) -> re.Pattern[str] | None:
    tokens = sorted(special_tokens, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, tokens))})") if tokens else None


def _build_bpe(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    build_pre_tokenizer = PRE_TOKENIZERS.get(vocabulary.pre_tokenizer)
    if build_pre_tokenizer is None:
        supported = ", ".join(PRE_TOKENIZERS)
        raise ModelFileError(f"Pre-tokenizer {vocabulary.pre_tokenizer!r} is not supported; supported: {supported}.")
    ids = {token: index for index, token in enumerate(vocabulary.tokens)}
    merges = [_merge(line) for line in vocabulary.merges]
    try:
        bpe = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges))
    except Exception as error:  # the Rust side raises plain Exception for a merge of unknown tokens
        raise ModelFileError(f"The vocabulary's merges do not fit its tokens: {error}.") from error
    bpe.pre_tokenizer = build_pre_tokenizer()
    bpe.add_tokens(
        [
            tokenizers.AddedToken(token, normalized=False, special=False)
            for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
            if kind == TokenKind.USER_DEFINED
        ]
    )
    return bpe


def _merge(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    if not left or not right:
        raise ModelFileError(f"The merge {line!r} does not name two tokens.")
    return left, right


def _token_bytes(vocabulary: Vocabulary, token_id: int) -> bytes:
    token = vocabulary.tokens[token_id]
    if vocabulary.kinds[token_id] == TokenKind.NORMAL:
        codes = [BYTE_OF_CODE_POINT.get(ord(char)) for char in token]
        known = [code for code in codes if code is not None]
        if len(known) == len(codes):
            return bytes(known)
    return token.encode()


def _spelled_bytes(vocabulary: Vocabulary) -> bytes:
    """The bytes that have a token of their own, so that any text made of them can be encoded."""
    single = {ord(token) for token in vocabulary.tokens if len(token) == 1}
    return bytes(byte for code_point, byte in BYTE_OF_CODE_POINT.items() if code_point in single)
