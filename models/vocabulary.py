"""The tokens of a model as its file lists them: text, kind, and which of them begin and end a turn."""

import enum
from collections.abc import Iterable

import msgspec
import numpy as np

from models.gguf import GGUFFile
from schemas.errors import ModelFileError


class TokenKind(enum.IntEnum):
    """What a token is, under the numbers that the file format gives it (llama.h, `enum llama_token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


SPECIAL_KINDS = (TokenKind.UNKNOWN, TokenKind.CONTROL)

EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")

# Files name one end of text, often only the end of a turn. After any of these a model goes on with another document,
# so each ends a generation (the same judgement as llama.cpp's list of end-of-generation tokens).
END_OF_TEXT = frozenset(
    [
        "<|im_end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|return|>",
        "<end_of_turn>",
        "<turn|>",
        "</s>",
        "<eos>",
    ]
)


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """A byte-level BPE vocabulary. `kinds` has one entry per token; merges are "left right", best first."""

    tokens: list[str]
    kinds: list[int]
    merges: list[str]
    pre_tokenizer: str
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    add_bos: bool

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> "Vocabulary":
        """Read and check the vocabulary; ModelFileError, naming it, for another kind of tokenizer."""
        model = file.require("tokenizer.ggml.model", str)
        if model != "gpt2":
            raise ModelFileError(
                f"{file.path}: tokenizer {model!r} is not supported; supported: gpt2 (byte-level BPE)."
            )
        tokens = _strings(file, "tokenizer.ggml.tokens")
        vocabulary = cls(
            tokens=tokens,
            kinds=_kinds(file, len(tokens)),
            merges=_strings(file, "tokenizer.ggml.merges"),
            pre_tokenizer=file.require("tokenizer.ggml.pre", str),
            bos_token_id=file.get("tokenizer.ggml.bos_token_id", int),
            eos_token_ids=tuple(_stated_eos(file)),
            add_bos=bool(file.get("tokenizer.ggml.add_bos_token", bool)),
        )
        vocabulary._check(file)
        return msgspec.structs.replace(vocabulary, eos_token_ids=vocabulary._all_eos())

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Tokens that text never spells: they mark turns, documents, what is unknown."""
        return frozenset(index for index, kind in enumerate(self.kinds) if kind in SPECIAL_KINDS)

    def _all_eos(self) -> tuple[int, ...]:
        known = [i for i in sorted(self.special_token_ids) if self.tokens[i] in END_OF_TEXT]
        return tuple(dict.fromkeys([*self.eos_token_ids, *known]))

    def _check(self, file: GGUFFile) -> None:
        if len(set(self.tokens)) != len(self.tokens) or "" in self.tokens:
            raise ModelFileError(f"{file.path}: the vocabulary has an empty token or one that appears twice.")
        marks = [*self.eos_token_ids, *([] if self.bos_token_id is None else [self.bos_token_id])]
        wrong = [mark for mark in marks if not 0 <= mark < len(self.tokens)]
        if wrong:
            raise ModelFileError(f"{file.path}: token ids {wrong} are outside the vocabulary of {len(self.tokens)}.")
        if not self.eos_token_ids:
            raise ModelFileError(f"{file.path}: 'tokenizer.ggml.eos_token_id' is missing: no answer would ever end.")


def _stated_eos(file: GGUFFile) -> Iterable[int]:
    stated = (file.get(f"tokenizer.ggml.{key}", int) for key in EOS_KEYS)
    return dict.fromkeys(mark for mark in stated if mark is not None)


def _strings(file: GGUFFile, key: str) -> list[str]:
    values = file.require(key, list)
    if not values:
        raise ModelFileError(f"{file.path}: {key!r} is empty.")
    return values


def _kinds(file: GGUFFile, num_tokens: int) -> list[int]:
    kinds: list[int] = file.require("tokenizer.ggml.token_type", np.ndarray).tolist()
    if len(kinds) != num_tokens:
        raise ModelFileError(f"{file.path}: {num_tokens} tokens, but {len(kinds)} token types.")
    return kinds
