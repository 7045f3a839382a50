"""Answers held to a structure by a model of noise: what ends is valid, and nothing else about a request changes."""

import json
import math
import re
import subprocess
import sys
from typing import Any

import jsonschema
import msgspec
import pytest

from engine.types import GenerationOutput, GenerationRequest
from schemas.errors import InvalidValue, Unsupported
from schemas.sampling import TokenLogprob
from schemas.structured import OutputStructure
from tests.engine.structured.structures import PERSON, WORDS, of_choice, of_regex, of_schema
from tests.engine.subjects import bits, company
from tests.engine.tiny import CONTEXT_LENGTH, EOS, last, run, text, tiny_engine, tiny_request, tokens
from tests.generated_schemas import generated_schema

NUM_SCHEMAS = 50
MAX_TOKENS = 900


def structured(request_id: str, structure: OutputStructure, **fields: Any) -> GenerationRequest:
    """A request that is sampled under a structure."""
    given: dict[str, Any] = {"max_tokens": MAX_TOKENS, "temperature": 1.0, "seed": sum(request_id.encode())}
    return tiny_request(request_id, f"{request_id}: ", structure=structure, **(given | fields))


def test_whatever_ends_under_a_generated_schema_is_valid() -> None:
    schemas = {f"s{seed}": generated_schema(seed) for seed in range(NUM_SCHEMAS)}
    requests = [
        structured(name, of_schema(schema), temperature=i % 3) for i, (name, schema) in enumerate(schemas.items())
    ]
    outputs = run(tiny_engine(), requests + company(10, seed=3))
    ended = {name for name in schemas if last(outputs, name).finish_reason == "stop"}
    assert len(ended) >= NUM_SCHEMAS - 2, "few answers came to an end"
    for name in ended:
        jsonschema.Draft202012Validator(schemas[name]).validate(json.loads(text(outputs, name)))
        assert tokens(outputs, name)[-1] == EOS
    assert {last(outputs, name).finish_reason for name in schemas} <= {"stop", "length"}


def test_free_text_is_what_it_is_without_structured_company() -> None:
    free = company(7, seed=5)
    alone = run(tiny_engine(), free)
    together = run(tiny_engine(), [*free, *(structured(f"p{i}", PERSON) for i in range(7))])
    for request in free:
        assert bits(together, request.request_id) == bits(alone, request.request_id)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_regular_expression_and_a_choice_are_met(temperature: float) -> None:
    outputs = run(
        tiny_engine(),
        [
            structured("phone", of_regex(r"\d{3}-\d{4}( ext\. \d)?"), temperature=temperature),
            structured("choice", of_choice("yes", "no", "yes and no"), temperature=temperature),
        ],
    )
    assert re.fullmatch(r"\d{3}-\d{4}( ext\. \d)?", text(outputs, "phone"))
    assert text(outputs, "choice") in ("yes", "no", "yes and no")


def test_any_json_object_is_the_beginning_of_one_when_its_room_ends() -> None:
    outputs = run(tiny_engine(), [structured("o", of_schema({"type": "object"}), max_tokens=40)])
    assert last(outputs, "o").finish_reason in ("length", "stop")
    assert text(outputs, "o").startswith("{")


def test_each_choice_is_held_to_the_structure_by_itself() -> None:
    five = run(tiny_engine(), [structured("r", PERSON, num_choices=5)])
    two = run(tiny_engine(max_running=1), [structured("r", PERSON, num_choices=2)])
    answers = [json.loads(text(five, "r", choice)) for choice in range(5)]
    for answer in answers:
        jsonschema.validate(answer, json.loads(PERSON.source))
    assert len({json.dumps(answer) for answer in answers}) == 5
    assert [bits(two, "r", choice) for choice in (0, 1)] == [bits(five, "r", choice) for choice in (0, 1)]


def test_logprobs_are_those_of_the_tokens_that_are_allowed() -> None:
    outputs = run(tiny_engine(), [structured("r", of_regex("(ab|c)[xyz]"), top_logprobs=20)])
    records = [record for output in outputs for record in output.logprobs or []]
    for record in records:
        assert math.isclose(sum(math.exp(value) for _, value in record.top), 1.0, rel_tol=1e-4)
        assert record.logprob == dict(record.top)[record.token_id]
    assert {chr(token_id) for token_id, _ in records[0].top} == {"a", "c"}
    assert {chr(token_id) for token_id, _ in records[-2].top} == {"x", "y", "z"}
    assert records[-1].top == [(EOS, 0.0)]
    assert msgspec.json.decode(msgspec.json.encode(records), type=list[TokenLogprob]) == records


def test_min_tokens_gives_way_where_the_structure_leaves_nothing_but_the_end() -> None:
    short = structured("short", of_choice("ab"), min_tokens=30)
    long = structured("long", of_regex("[ab]{0,99}"), min_tokens=30)
    word = structured("word", of_regex("ab[cd]"), min_tokens=30, stop_token_ids=[ord("c"), ord("d")])
    outputs = run(tiny_engine(), [short, long, word])
    assert text(outputs, "short") == "ab"
    assert len(text(outputs, "long")) >= 30
    assert text(outputs, "word") in ("abc", "abd")
    assert all(last(outputs, name).finish_reason == "stop" for name in ("short", "long", "word"))


def test_a_stop_string_ends_the_answer_where_it_stands() -> None:
    outputs = run(tiny_engine(), [structured("r", of_regex("[ab]{50}END[ab]{50}"), stop=["END"])])
    assert last(outputs, "r").stop_reason == "END"
    assert re.fullmatch("[ab]{50}", text(outputs, "r"))


def test_no_bias_makes_the_model_leave_the_structure() -> None:
    bias = {ord("!"): 100.0, EOS: 100.0, ord("a"): -100.0}
    outputs = run(tiny_engine(), [structured("r", of_regex("a{20}"), logit_bias=bias, repetition_penalty=5.0)])
    assert text(outputs, "r") == "a" * 20


def test_an_answer_that_reaches_max_tokens_says_so() -> None:
    outputs = run(tiny_engine(), [structured("r", WORDS, max_tokens=10)])
    assert last(outputs, "r").finish_reason == "length"
    assert re.fullmatch("([a-z]{3} ){2}[a-z]{2}", text(outputs, "r"))


@pytest.mark.parametrize(
    ("structure", "error"),
    [(of_schema({"not": {}}), Unsupported), (of_regex("a("), InvalidValue)],
    ids=["not", "regex"],
)
def test_what_cannot_be_enforced_is_refused_and_leaves_nothing_behind(
    structure: OutputStructure, error: type[Exception]
) -> None:
    engine = tiny_engine()
    with pytest.raises(error):
        engine.add(structured("r", structure))
    assert not engine.has_work
    engine.add(structured("r", WORDS, max_tokens=3))
    assert len(tokens(run(engine), "r")) == 3


def test_an_answer_that_may_not_end_has_no_structure() -> None:
    with pytest.raises(InvalidValue) as caught:
        tiny_engine().add(structured("r", WORDS, ignore_eos=True))
    assert caught.value.param == "ignore_eos"


def test_tokens_of_a_predecessor_that_do_not_fit_end_their_request_and_no_other() -> None:
    broken = structured("broken", WORDS, emitted={0: list(b"no!")})
    fine = structured("fine", WORDS, max_tokens=20)
    alone = run(tiny_engine(), [fine])
    outputs = run(tiny_engine(), [broken, fine])
    end = last(outputs, "broken")
    assert (end.finish_reason, end.index, end.token_ids) == ("error", 3, [])
    assert end.error is not None
    assert end.error.code == "unsupported"
    assert bits(outputs, "fine") == bits(alone, "fine")


RESUME = """
import sys, msgspec
from engine.types import GenerationRequest
from tests.engine.tiny import run, tiny_engine
requests = msgspec.json.decode(sys.stdin.buffer.read(), type=list[GenerationRequest])
sys.stdout.buffer.write(msgspec.json.encode([run(tiny_engine(), [request]) for request in requests]))
"""


def test_a_successor_in_another_process_goes_on_with_the_very_tokens() -> None:
    request = structured("r", PERSON, top_logprobs=2)
    whole = run(tiny_engine(), [request])
    token_ids, logprobs, _ = bits(whole, "r")
    counts = (1, len(token_ids) // 2, len(token_ids) - 1)
    resumed = [msgspec.structs.replace(request, emitted={0: token_ids[:count]}) for count in counts]
    encoded = msgspec.json.encode(resumed)
    done = subprocess.run([sys.executable, "-c", RESUME], input=encoded, capture_output=True, check=True, timeout=100)
    answers = msgspec.json.decode(done.stdout, type=list[list[GenerationOutput]])
    for count, outputs in zip(counts, answers, strict=True):
        assert [i for output in outputs for i in output.token_ids] == token_ids[count:]
        assert [p for output in outputs for p in output.logprobs or []] == logprobs[count:]
        assert outputs[-1].finish_reason == "stop"


def test_a_prompt_that_fills_the_context_still_leaves_its_answer_structured() -> None:
    prompt = [65] * (CONTEXT_LENGTH - 4)
    request = tiny_request("r", prompt, max_tokens=4, structure=of_choice("abc"))
    assert text(run(tiny_engine(max_tokens_per_step=100), [request]), "r") == "abc"
