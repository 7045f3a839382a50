"""Structures that compile allow exactly what they mean; all others are refused, with the place and the reason."""

import contextlib
import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from models.structured import StructureCompiler
from models.subschemas import subschemas
from models.tokenizer import Tokenizer
from schemas.errors import InvalidValue, RequestError, Unsupported
from schemas.structured import OutputStructure
from tests.generated_schemas import generated_schema
from tests.models.grammar_walks import accepts, allowed, noise
from tests.models.test_tokenizer import UNSPELLABLE, spellable_text

TEXT = {"type": "string"}


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> StructureCompiler:
    return StructureCompiler(tokenizer)


def of_schema(schema: Any) -> OutputStructure:
    return OutputStructure(kind="json", source=json.dumps(schema, ensure_ascii=False))


def of_choice(*texts: str) -> OutputStructure:
    return OutputStructure(kind="choice", source=json.dumps(texts))


def of_regex(source: str) -> OutputStructure:
    return OutputStructure(kind="regex", source=source)


# What some value of a schema may be: nothing here is refused, and every value is allowed as json.dumps writes it.
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-10_000, 10_000) | spellable_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(spellable_text, inner, max_size=3),
    max_leaves=8,
)


@given(value=json_values)
@example(value={"a b": [1, {"": None}], "é": '\x7f\x1f/\\"'})
def test_a_constant_is_allowed_as_json_dumps_writes_it(
    compiler: StructureCompiler, tokenizer: Tokenizer, value: Any
) -> None:
    matcher = compiler.compile(of_schema({"const": value}))
    written = noise(matcher, tokenizer, seed=0, max_tokens=100_000)
    assert written is not None
    assert json.loads(written) == value
    assert accepts(matcher, tokenizer, written)


@given(texts=st.lists(spellable_text, min_size=1, max_size=6), other=spellable_text)
@example(texts=["", "a", "aa", "a.b", "(x|y)*", '\n/"\\', "日本", "^$", "<|im_end|>"], other="a+b")
def test_a_choice_allows_its_texts_and_no_other(
    compiler: StructureCompiler, tokenizer: Tokenizer, texts: list[str], other: str
) -> None:
    matcher = compiler.compile(of_choice(*texts))
    assert all(accepts(matcher, tokenizer, text) for text in texts)
    assert accepts(matcher, tokenizer, other) == (other in texts)
    assert noise(matcher, tokenizer, seed=1, max_tokens=10_000) in texts


SOURCES = [
    r"[a-c]{2,4}x?", r"(yes|no|maybe) \w{3}", r"^\d{3}-\d{4}$", r"a*?b", r"[\w\s]{3}", r"\W\S\D", r"(?i)abc",
    r"a/ | /b", r"x/i", "a\nb", r"/\"'",
]  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_a_regular_expression_must_match_the_whole_answer(
    compiler: StructureCompiler, tokenizer: Tokenizer, source: str
) -> None:
    matcher = compiler.compile(of_regex(source))
    for seed in range(20):
        written = noise(matcher, tokenizer, seed)
        assert written is not None
        assert re.fullmatch(source, written, re.ASCII), written


@pytest.mark.parametrize("seed", range(60))
def test_noise_under_a_generated_schema_is_valid(compiler: StructureCompiler, tokenizer: Tokenizer, seed: int) -> None:
    schema = generated_schema(seed)
    written = noise(compiler.compile(of_schema(schema)), tokenizer, seed, max_tokens=5_000)
    assert written is not None
    jsonschema.Draft202012Validator(schema).validate(json.loads(written))


def test_any_object_is_an_object(compiler: StructureCompiler, tokenizer: Tokenizer) -> None:
    matcher = compiler.compile(of_schema({"type": "object"}))
    assert accepts(matcher, tokenizer, '{"a": [1, 2.5, {"b": null}], "c": "d"}')
    assert not any(accepts(matcher, tokenizer, text) for text in ("[]", '"a"', "1", "{", "{} ", ' {"a": 1}'))


UNSUPPORTED: list[tuple[dict[str, Any], str, str]] = [
    ({"properties": {"a": {"not": TEXT}}}, ".properties.a.not", "not"),
    ({"type": "array", "uniqueItems": True}, ".uniqueItems", "uniqueItems"),
    ({"anyOf": [TEXT, {"contains": TEXT}]}, ".anyOf[1].contains", "contains"),
    ({"if": TEXT, "then": {"maxLength": 3}}, ".if", "if"),
    ({"propertyNames": {"pattern": "a"}}, ".propertyNames", "propertyNames"),
    ({"dependentRequired": {"a": ["b"]}}, ".dependentRequired", "dependentRequired"),
    ({"$defs": {"d": {"unevaluatedItems": 1}}, "$ref": "#/$defs/d"}, ".$defs.d.unevaluatedItems", "unevaluatedItems"),
    ({"items": {"type": "string", "format": "postcode"}}, ".items.format", "postcode"),
    ({"type": "string", "pattern": "(?=a)b"}, "", "look-ahead"),
    ({"type": "string", "pattern": r"(a)\1"}, "", "backreferences"),
    ({"$ref": "http://127.0.0.1/other.json"}, "", "other.json"),
    ({"properties": {"a": {"oneOf": [TEXT, {"maxLength": 3}]}}}, ".properties.a.oneOf", "anyOf"),
    ({"patternProperties": {"^a": TEXT, "b$": {"type": "null"}}}, "", "not disjoint"),
    ({"x-guidance": {"lenient": True}, "type": "object"}, ".x-guidance", "x-guidance"),
    ({"x-guidance": {"lenient": True}, "not": {}}, ".not", "not"),
    ({"type": "object", "minProperties": 1}, ".minProperties", "required"),
    ({"items": {"type": "object", "minProperties": 2, "required": ["a"]}}, ".items.minProperties", "required"),
    ({"properties": {"a": {"exclusiveMinimum": 9, "maximum": 9.5}}}, ".properties.a.exclusiveMinimum", "minimum"),
    ({"type": "number", "minimum": -0.5, "exclusiveMaximum": 0.0}, ".exclusiveMaximum", "maximum"),
    ({"allOf": [{"exclusiveMinimum": 0}, {"type": "number", "maximum": 0.5}]}, ".exclusiveMinimum", "minimum"),
    ({"$defs": {"p": {"exclusiveMinimum": 0}}, "$ref": "#/$defs/p", "maximum": 0.1}, ".exclusiveMinimum", "minimum"),
    ({"minimum": 3, "exclusiveMinimum": True, "maximum": 3.5, "$schema": "http://json-schema.org/draft-04/schema#"},
     ".exclusiveMinimum", "minimum"),
    ({"const": "\U00040000"}, "", r"U\+40000"),
    ({"type": "object", "properties": {f"p{i}": TEXT for i in range(1500)}}, "", "2000"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "path", "reason"), UNSUPPORTED, ids=lambda value: str(value)[:40])
def test_what_cannot_be_enforced_is_refused_by_name(
    compiler: StructureCompiler, schema: dict[str, Any], path: str, reason: str
) -> None:
    with pytest.raises(Unsupported, match=reason) as caught:
        compiler.compile(of_schema(schema), param="the.schema")
    assert caught.value.param == f"the.schema{path}"


@given(seed=st.integers(0, 100_000), data=st.data())
def test_an_unsupported_keyword_is_found_wherever_it_stands(
    compiler: StructureCompiler, seed: int, data: st.DataObject
) -> None:
    schema = generated_schema(seed)
    place = data.draw(st.sampled_from(list(subschemas(schema))))
    keyword, value = data.draw(st.sampled_from([("not", {}), ("contains", {}), ("uniqueItems", True)]))
    place.schema[keyword] = value
    with pytest.raises(Unsupported, match=keyword) as caught:
        compiler.compile(of_schema(schema), param="s")
    assert caught.value.param == f"s{place.path}.{keyword}"


@pytest.mark.parametrize(
    "structure",
    [
        of_schema({"type": "text"}),
        of_schema({"properties": 5}),
        of_schema({"$ref": "#/$defs/absent"}),
        of_schema({"$ref": "#"}),
        of_schema({"enum": []}),
        of_schema({"type": "integer", "minimum": 5, "maximum": 1}),
        of_schema({"type": "object", "required": ["a"], "additionalProperties": False}),
        of_schema(["no", "object"]),
        OutputStructure(kind="json", source="{"),
        of_regex("a("),
        of_regex("[]"),
        of_regex(r"[^\s\S]"),
        of_regex("\ud800"),
    ],
    ids=lambda structure: ascii(structure.source[:30]),
)
def test_what_is_wrong_in_itself_is_refused_as_that(compiler: StructureCompiler, structure: OutputStructure) -> None:
    with pytest.raises(InvalidValue) as caught:
        compiler.compile(structure, param="here")
    assert caught.value.param == "here"
    assert len(caught.value.message) > 20


@pytest.mark.parametrize("structure", [of_choice("a", UNSPELLABLE), of_regex(f"a{UNSPELLABLE[0]}?")])
def test_characters_without_a_token_are_refused(compiler: StructureCompiler, structure: OutputStructure) -> None:
    with pytest.raises(Unsupported, match=r"no token for U\+0004"):
        compiler.compile(structure)


def nested(levels: int) -> OutputStructure:
    """Arrays in arrays."""
    return OutputStructure(kind="json", source='{"items":' * levels + "true" + "}" * levels)


def references(levels: int) -> OutputStructure:
    """Each refers to the next one twice."""
    schemas = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 2} for level in range(levels)}
    return of_schema({"$defs": {**schemas, f"d{levels}": TEXT}, "$ref": "#/$defs/d0"})


BOMBS = [
    of_regex("(a{1,1000}){1,1000}"),
    of_regex("((a{1,100}){1,100}){1,100}"),
    of_regex(".*a.{60}b"),
    of_regex("(.*a){30}"),
    of_schema({"type": "string", "minLength": 10**6, "maxLength": 10**9}),
    of_schema({"type": "array", "items": TEXT, "minItems": 10**6}),
    of_schema({"allOf": [{"anyOf": [{"properties": {f"a{i}": {"const": j}}} for j in range(6)]} for i in range(7)]}),
    of_schema({"allOf": [{"type": "string", "pattern": f"{c}.*{c}{{20}}"} for c in "abcdef"]}),
    of_schema({"type": "integer", "multipleOf": 1_000_003, "minimum": 10**15}),
    of_schema({"properties": {"c": {"$ref": "#"}}, "required": ["c"], "additionalProperties": False}),
    references(40),
    nested(60),
    nested(2000),
]  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("structure", BOMBS, ids=lambda structure: structure.source[:40])
def test_a_bomb_is_refused_or_harmless(compiler: StructureCompiler, structure: OutputStructure) -> None:
    """The limits of the library end it; what compiles can be begun."""
    with contextlib.suppress(RequestError):
        matcher = compiler.compile(structure)
        assert matcher.consume_token(allowed(matcher.deep_copy())[0])
