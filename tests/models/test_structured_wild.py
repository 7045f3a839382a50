"""Whatever a schema says, it is refused by name or every answer under it that ends is valid: there is no third way."""

import json
from collections import Counter

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.catalog import open_model
from models.structured import StructureCompiler
from models.tokenizer import Tokenizer
from schemas.errors import RequestError
from schemas.structured import OutputStructure
from tests.models.gguf_writer import write_gguf
from tests.models.grammar_walks import noise
from tests.wild_schemas import wild_schema


class Bench:
    """A small vocabulary with a token for each byte, and the compiler of it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.compiler = StructureCompiler(tokenizer)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(open_model("tiny", str(write_gguf(tmp_path_factory.mktemp("wild") / "tiny.gguf"))).tokenizer)


def outcome(bench: Bench, seed: int) -> str:
    """What became of the schema of a seed; raises where an answer is not valid."""
    schema = wild_schema(seed)
    jsonschema.Draft202012Validator.check_schema(schema)
    try:
        matcher = bench.compiler.compile(OutputStructure(kind="json", source=json.dumps(schema, ensure_ascii=False)))
    except RequestError as error:
        return error.code
    answers = [noise(matcher, bench.tokenizer, seed * 3 + number, max_tokens=120) for number in range(3)]
    for answer in answers:
        if answer is not None:
            jsonschema.Draft202012Validator(schema).validate(json.loads(answer))
    return "valid" if any(answer is not None for answer in answers) else "unfinished"


@settings(max_examples=150)
@given(seed=st.integers(1_000, 1_000_000))
def test_a_schema_is_enforced_or_refused(bench: Bench, seed: int) -> None:
    assert outcome(bench, seed) in ("valid", "unfinished", "invalid_value", "unsupported")


def test_most_schemas_are_enforced(bench: Bench) -> None:
    """Else the test above would show little."""
    found = Counter(outcome(bench, seed) for seed in range(200))
    assert found["valid"] > 80
    assert min(found[kind] for kind in ("valid", "invalid_value", "unsupported")) > 0
