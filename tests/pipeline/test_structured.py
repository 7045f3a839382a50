"""What a request asks its answer to be, in either of the two dialects, becomes one structure or is refused."""

import json
from typing import Any

import msgspec
import pytest

from models.catalog import open_model
from models.structured import StructureCompiler
from pipeline.context import GivenPrompt, TokenPrompt, assemble
from pipeline.prompt_child import answer_of
from pipeline.prompt_wire import Built, Refused
from pipeline.sampling import sampling_params
from pipeline.structured import AskedStructure, asked_structure
from pipeline.tokenize import PromptPool
from schemas.codec import TURN, decode_request
from schemas.errors import InvalidValue, RequestError, RequestTooLarge, Unsupported
from schemas.requests import ChatRequest, CompletionRequest
from schemas.structured import MAX_STRUCTURE_BYTES, OutputStructure, StructuredOutputs
from tests.pipeline.builders import FACTS, completion, turn

SCHEMA = {"type": "object", "properties": {"z": {"type": "integer"}, "a": {"const": "é"}}, "required": ["a", "z"]}
COMPACT = '{"type":"object","properties":{"z":{"type":"integer"},"a":{"const":"é"}},"required":["a","z"]}'
NAMED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


def asked_of(**fields: Any) -> AskedStructure | None:
    """What a chat with these fields asks for, after its way through JSON and through the log."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    request = decode_request(json.dumps(body).encode()).request
    assert isinstance(request, ChatRequest)
    travelled = TURN.decode(TURN.encode(turn(request))).request
    assert isinstance(travelled, ChatRequest)
    return asked_structure(travelled)


@pytest.mark.parametrize(
    ("fields", "kind", "source", "param"),
    [
        ({"response_format": NAMED}, "json", COMPACT, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object"}}, "json", '{"type":"object"}', "response_format"),
        ({"structured_outputs": {"json": SCHEMA}}, "json", COMPACT, "structured_outputs.json"),
        ({"structured_outputs": {"json": COMPACT}}, "json", COMPACT, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": True}}, "json", '{"type":"object"}', "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+", "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["yes", "né"]}}, "choice", '["yes","né"]', "structured_outputs.choice"),
        (
            {"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}},
            "regex", "a", "structured_outputs.regex",
        ),
    ],
)  # fmt: skip
def test_each_way_of_asking_becomes_one_structure(fields: dict[str, Any], kind: Any, source: str, param: str) -> None:
    assert asked_of(**fields) == AskedStructure(OutputStructure(kind=kind, source=source), param)


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "text"}}, {"response_format": None}])
def test_text_is_free(fields: dict[str, Any]) -> None:
    assert asked_of(**fields) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[]"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": '{"items":' * 3000 + "1" + "}" * 3000}}, "structured_outputs.json"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_what_contradicts_itself_is_refused_at_its_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        asked_of(**fields)
    assert caught.value.param == param


def test_a_structure_has_a_largest_size() -> None:
    assert asked_of(structured_outputs={"regex": "é" * (MAX_STRUCTURE_BYTES // 2)})
    with pytest.raises(RequestTooLarge, match="65537") as caught:
        asked_of(structured_outputs={"regex": "a" * (MAX_STRUCTURE_BYTES + 1)})
    assert caught.value.param == "structured_outputs.regex"


def test_the_structure_arrives_in_the_sampling_parameters() -> None:
    request = decode_request(json.dumps({"model": "m", "prompt": "hi", "response_format": NAMED}).encode()).request
    assert isinstance(request, CompletionRequest)
    params = sampling_params(request, request_id="r", max_tokens=5, vocab_size=100)
    assert params.structure == OutputStructure(kind="json", source=COMPACT)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=type(params)) == params


@pytest.mark.parametrize("prompt", ["hi", [1, 2]])
@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"type": "string"}, None),
        ({"not": {}}, "structured_outputs.json.not"),
        ({"type": "x"}, "structured_outputs.json"),
    ],
)
def test_a_structure_is_compiled_where_prompts_are_built(
    prompt: str | list[int], schema: dict[str, Any], param: str | None
) -> None:
    model = open_model("m")
    request = completion(prompt, structured_outputs=StructuredOutputs(json=schema))
    job = assemble(turn(request), [7], FACTS)
    assert not isinstance(job, GivenPrompt)
    answer = answer_of(job, model, StructureCompiler(model.tokenizer))
    if param is None:
        assert isinstance(answer, Built)
        assert answer.token_ids[0] == 7
    else:
        assert isinstance(answer, Refused)
        assert answer.error.param == param


def test_token_ids_of_the_client_need_no_child_process_without_a_structure() -> None:
    assert isinstance(assemble(turn(completion([1, 2])), [], FACTS), GivenPrompt)
    structured = completion([1, 2], structured_outputs=StructuredOutputs(regex="a"))
    assert isinstance(assemble(turn(structured), [], FACTS), TokenPrompt)


@pytest.mark.parametrize(
    ("structure", "error"),
    [
        (OutputStructure(kind="json", source='{"not":{}}'), Unsupported),
        (OutputStructure(kind="json", source='{"type":"x"}'), InvalidValue),
        (OutputStructure(kind="regex", source="((a{1,100}){1,100}){1,100}\\b"), Unsupported),
        (OutputStructure(kind="json", source='{"items":' * 50_000 + "1" + "}" * 50_000), RequestError),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_child_refuses_what_cannot_be_enforced_and_lives(
    pool: PromptPool, structure: OutputStructure, error: type[RequestError]
) -> None:
    pids = pool.pids
    with pytest.raises(error) as caught:
        await pool.build(TokenPrompt(model="tiny", token_ids=[1], asked=AskedStructure(structure, "the.field")))
    assert (caught.value.param or "").startswith("the.field")
    fine = AskedStructure(OutputStructure(kind="choice", source='["a"]'), "the.field")
    assert await pool.build(TokenPrompt(model="tiny", token_ids=[1], asked=fine)) == [1]
    assert pool.pids == pids
