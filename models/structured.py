"""Structures compiled to grammars over one vocabulary, or refused by name before anything runs.

The pipeline compiles each to see whether it can be enforced, the engine to enforce it: both get the same answer.
"""

import json
import re
import threading
from typing import Any

import llguidance
import numpy as np
from llguidance import LLMatcher

from models.grammar_tokens import grammar_tokenizer
from models.schema_gaps import gaps
from models.subschemas import subschemas
from models.tokenizer import Tokenizer
from schemas.errors import InvalidValue, RequestError, Unsupported
from schemas.structured import OutputStructure

# Of what all answers in one grammar visit; up to 2 kB each, so fewer than the library's 250,000.
MAX_LEXER_STATES = 100_000
# How far an answer is tried out: far enough to meet a grammar that no text fits, or that is too large to follow.
_NUM_PROBED_TOKENS = 8

# What the library says where it understands and cannot do it; in any other case the structure itself is wrong.
_UNSUPPORTED = re.compile(
    "unimplemented|not (yet )?supported|only supported|not disjoint|unknown format|in a registry|too (large|many)|"
    "limit|fuel|max is",
    re.IGNORECASE,
)
_UNIMPLEMENTED = re.compile(r"Unimplemented keys: (\[.*\])")
_UNKNOWN_FORMAT = re.compile(r"Unknown format: (.*)")
_ONE_OF = "oneOf constraints are not supported"
_NO_WAY_ON = "NoExtension"


class StructureCompiler:
    """Compiles structures for one tokenizer. May be used by several threads."""

    def __init__(self, tokenizer: Tokenizer, *, max_lexer_states: int = MAX_LEXER_STATES) -> None:
        self._tokenizer = tokenizer
        # The library's other limits hold compiling to 0.3 s and a mask to 15 ms in the worst cases tried. Its verbose
        # errors would quote what was generated.
        self._limits = llguidance.LLParserLimits(max_lexer_states=max_lexer_states, verbose_errors=False)
        self._grammar_tokenizer: llguidance.LLTokenizer | None = None
        self._lock = threading.Lock()

    def compile(self, structure: OutputStructure, *, param: str = "structure") -> LLMatcher:
        """A matcher at the beginning of an answer. Takes a few ms, and 0.2 s for the largest schemas.

        `param` is the path of the field that holds the structure, for errors.

        Raises:
            InvalidValue: the structure is wrong in itself, or no text satisfies it.
            Unsupported: it asks for what cannot be enforced; `param` names the place in the schema.
        """
        self._check_spelling(structure, param)
        try:
            grammar = _grammar(structure)
        except ValueError as error:
            raise InvalidValue(f"the structure cannot be read: {error}", param=param) from error
        matcher = LLMatcher(self._tokens(), grammar, log_level=0, limits=self._limits)
        problems = [matcher.get_error()] if matcher.is_error() else matcher.get_grammar_warnings()
        if problems:
            raise _refusal(problems[0], structure, param)
        if structure.kind == "json":
            _check_gaps(json.loads(structure.source), param)
        self._probe(LLMatcher(self._tokens(), grammar, log_level=0, limits=self._limits), structure, param)
        return matcher

    def _tokens(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._grammar_tokenizer is None:
                self._grammar_tokenizer = grammar_tokenizer(self._tokenizer)
            return self._grammar_tokenizer

    def _check_spelling(self, structure: OutputStructure, param: str) -> None:
        """Refuse characters that the model has no tokens for: an answer would end where one must come."""
        texts = json.loads(structure.source) if structure.kind == "choice" else [structure.source]
        for text in texts:
            try:
                num_spelled = len(self._tokenizer.spelled_prefix(text))
            except UnicodeEncodeError as error:
                raise InvalidValue(f"the structure is not valid Unicode: {error.reason}", param=param) from error
            if num_spelled < len(text):
                raise Unsupported(f"the model has no token for U+{ord(text[num_spelled]):04X}", param=param)

    def _probe(self, matcher: LLMatcher, structure: OutputStructure, param: str) -> None:
        """Follow one answer for a few tokens."""
        for _ in range(_NUM_PROBED_TOKENS):
            words = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            if matcher.is_error():
                raise _refusal(matcher.get_error(), structure, param)
            allowed = np.unpackbits(words, bitorder="little")
            allowed[list(self._tokenizer.eos_token_ids)] = 0
            if not allowed.any():
                return
            matcher.consume_token(int(allowed.argmax()))


def _grammar(structure: OutputStructure) -> str:
    if structure.kind == "json":
        return _json_grammar(structure.source)
    if structure.kind == "choice":
        return _regex_grammar("|".join(map(_literal, json.loads(structure.source))))
    return _regex_grammar(structure.source)


def _json_grammar(schema: str) -> str:
    """JSON as `json.dumps` writes it, and no other blanks: where they are free, small models write them without end."""
    return LLMatcher.grammar_from_json_schema(
        schema,
        # Each option is named: a schema may carry options of its own, and these win.
        overrides={
            "item_separator": ", ",
            "key_separator": ": ",
            "whitespace_flexible": False,
            "whitespace_pattern": None,
            "coerce_one_of": False,
            "lenient": False,
            "json_allowed_escapes": None,
            "json_allow_general_unicode_escapes": False,
        },
    )


def _regex_grammar(source: str) -> str:
    """A regular expression whose digits, words and blanks are ASCII: who asks for digits can seldom read all 700."""
    return LLMatcher.grammar_from_lark(f"start: /{llguidance.regex_to_lark(source, use_ascii='dws')}/")


def _literal(text: str) -> str:
    """A regular expression, in the syntax of Rust's `regex`, for exactly this text."""
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text) or "(?:)"


def _check_gaps(schema: dict[str, Any], param: str) -> None:
    gap = next(gaps(schema), None)
    if gap is not None:
        raise Unsupported(f"this JSON Schema cannot be enforced: {gap.message}", param=f"{param}{gap.path}")


def _refusal(problem: str, structure: OutputStructure, param: str) -> RequestError:
    """The library's complaint as an error of ours, at the place in the schema that it is about."""
    message = problem.partition("\n<")[0].strip()
    if message.startswith(_NO_WAY_ON):
        return InvalidValue("no text that the model can write satisfies this structure", param=param)
    what = "JSON Schema" if structure.kind == "json" else structure.kind
    if not _UNSUPPORTED.search(message):
        return InvalidValue(f"this {what} is not valid: {message}", param=param)
    path = _place(message, structure) if structure.kind == "json" else ""
    if message.startswith(_ONE_OF):
        message = "`oneOf` needs members that no value has in common, as by a `const` property; or use `anyOf`"
    return Unsupported(f"this {what} cannot be enforced: {message}", param=f"{param}{path}")


def _place(message: str, structure: OutputStructure) -> str:
    """Where in a JSON Schema the keyword or the format stands that the message names; empty if it names none."""
    parts = list(subschemas(json.loads(structure.source)))
    if found := _UNIMPLEMENTED.search(message):
        keyword = json.loads(found[1])[0]
        return next((f"{path}.{keyword}" for path, part in parts if keyword in part), "")
    if found := _UNKNOWN_FORMAT.search(message):
        return next((f"{path}.format" for path, part in parts if part.get("format") == found[1]), "")
    if message.startswith(_ONE_OF):
        places = [f"{path}.oneOf" for path, part in parts if "oneOf" in part]
        return places[0] if len(places) == 1 else ""
    return ""
