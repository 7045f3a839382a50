"""The real model under a structure: valid, in the words of the model, and the same bits in any company."""

import json

import jsonschema
import msgspec

from engine.config import EngineConfig
from engine.executor import LocalExecutor
from engine.types import GenerationRequest
from models.catalog import LoadedModel
from models.prompt import build_prompt
from schemas.sampling import SamplingParams
from schemas.structured import OutputStructure
from tests.engine.conftest import smollm_engine
from tests.engine.structured.structures import PERSON, of_choice, of_regex
from tests.engine.subjects import bits
from tests.engine.tiny import last, run, text

QUESTION = "Name a person, their age and three tags, as JSON."


def asked(
    model: LoadedModel, request_id: str, structure: OutputStructure | None, **fields: object
) -> GenerationRequest:
    """A chat that asks for a person."""
    sampling = {"max_tokens": 60, "seed": 1, "temperature": 0.0, "top_logprobs": 2} | fields
    prompt = build_prompt(model.tokenizer, model.template, [{"role": "user", "content": QUESTION}])
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=prompt.token_ids,
        sampling=msgspec.convert(sampling | {"structure": structure}, SamplingParams),
    )


def test_structured_answers_are_valid_and_the_same_in_company_and_with_drafts(
    smollm: LoadedModel, smollm_bfloat16: LocalExecutor
) -> None:
    weights = smollm_bfloat16
    subjects = [
        asked(smollm, "greedy", PERSON),
        asked(smollm, "drawn", PERSON, temperature=1.0, top_p=0.95),
        asked(smollm, "choice", of_choice("yes", "no", "perhaps")),
        asked(smollm, "digits", of_regex(r"\d{3}-\d{4}"), temperature=1.5),
    ]
    company = [asked(smollm, f"free{seed}", None, seed=seed, temperature=1.0, max_tokens=20) for seed in range(4)]
    alone = [output for one in subjects for output in run(smollm_engine(smollm, weights, EngineConfig()), [one])]
    for name in ("greedy", "drawn"):
        assert last(alone, name).finish_reason == "stop"
        jsonschema.validate(json.loads(text(alone, name)), json.loads(PERSON.source))
    assert text(alone, "choice") in ("yes", "no", "perhaps")
    config = EngineConfig(max_tokens_per_step=70, proposer="ngram", prompt_lookup_min=1)
    engine = smollm_engine(smollm, weights, config)
    together = run(engine, [*company, *subjects])
    for one in subjects:
        assert bits(together, one.request_id) == bits(alone, one.request_id)
    assert engine.stats().num_draft_tokens > 0
