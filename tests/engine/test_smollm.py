"""The real model: the same tokens as transformers, and the same bits in any company, in the dtypes that are served."""

import json
from pathlib import Path
from typing import TypedDict

import pytest

from engine.config import EngineConfig
from engine.executor import LocalExecutor
from engine.types import GenerationOutput, GenerationRequest
from kernels.paging import SPLIT_SIZE
from models.catalog import LoadedModel
from schemas.sampling import SamplingParams, TokenLogprob
from tests.engine.conftest import smollm_engine
from tests.engine.subjects import bits
from tests.engine.tiny import last, run, text, tokens

ORACLE = Path(__file__).parent.parent / "data" / "oracle" / "greedy.json"


class Answer(TypedDict):
    """One entry of the oracle's file."""

    prompt_token_ids: list[int]
    output_token_ids: list[int]
    text: str


ANSWERS: list[Answer] = json.loads(ORACLE.read_text())["answers"]
NUM_COMPARED = 8
MAX_TOKENS: int = json.loads(ORACLE.read_text())["made_with"]["max_tokens"]


def oracle_requests() -> list[GenerationRequest]:
    return [
        GenerationRequest(
            request_id=str(number),
            prompt_token_ids=answer["prompt_token_ids"],
            sampling=SamplingParams(max_tokens=MAX_TOKENS, seed=0, temperature=0.0),
        )
        for number, answer in enumerate(ANSWERS)
    ]


def test_float32_gives_the_tokens_of_transformers(smollm: LoadedModel, smollm_float32: LocalExecutor) -> None:
    outputs = run(smollm_engine(smollm, smollm_float32, EngineConfig()), oracle_requests())
    for number, answer in enumerate(ANSWERS):
        assert tokens(outputs, str(number)) == answer["output_token_ids"]
        assert text(outputs, str(number)) == answer["text"]
        is_whole = answer["output_token_ids"][-1] == smollm.spec.eos_token_ids[0]
        assert last(outputs, str(number)).finish_reason == ("stop" if is_whole else "length")


@pytest.mark.parametrize("executor", ["smollm_float32", "smollm_bfloat16"])
def test_company_chunks_and_preemptions_change_no_bit(
    smollm: LoadedModel, executor: str, request: pytest.FixtureRequest
) -> None:
    weights: LocalExecutor = request.getfixturevalue(executor)
    prompts = [answer["prompt_token_ids"] for answer in ANSWERS]
    long = (prompts[6] * 4)[: SPLIT_SIZE + 10]  # longer than a split of attention
    subjects = [subject("long", long, temperature=0.0), subject("short", prompts[0], temperature=0.8)]
    company = [subject(f"c{n}", prompt, temperature=1.0) for n, prompt in enumerate(prompts[1:4])]

    def bits(outputs: list[GenerationOutput]) -> list[tuple[list[int], list[TokenLogprob]]]:
        mine = [(s.request_id, [o for o in outputs if o.request_id == s.request_id]) for s in subjects]
        return [(tokens(own, name), [p for output in own for p in output.logprobs or []]) for name, own in mine]

    alone = bits([output for s in subjects for output in run(smollm_engine(smollm, weights, EngineConfig()), [s])])
    assert all(len(token_ids) == NUM_COMPARED for token_ids, _ in alone)
    crowded = smollm_engine(smollm, weights, EngineConfig(max_running=3, max_tokens_per_step=50), num_blocks=30)
    for bulk in subjects:
        crowded.add(bulk)
    outputs = [output for _ in range(9) for output in crowded.step()]
    assert bits(outputs + run(crowded, company)) == alone
    assert crowded.stats().num_preemptions > 0


def subject(request_id: str, prompt: list[int], *, temperature: float) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=NUM_COMPARED, seed=3, temperature=temperature, top_logprobs=2, ignore_eos=True)
    is_company = request_id.startswith("c")
    return GenerationRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=sampling,
        priority_class="interactive" if is_company else "bulk",
    )


def test_prompt_lookup_saves_steps_and_changes_no_bit(smollm: LoadedModel, smollm_bfloat16: LocalExecutor) -> None:
    code = "def area(width, height):\n    return width * height\n\n"
    turn = f"<|im_start|>user\nRepeat this:\n{code * 2}<|im_end|>\n<|im_start|>assistant\n"
    prompt = smollm.tokenizer.encode(turn, special=True)
    requests = [
        GenerationRequest(
            request_id=name,
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=32, seed=2, temperature=temperature, top_logprobs=1, ignore_eos=True),
        )
        for name, temperature in (("greedy", 0.0), ("drawn", 0.3))
    ]
    outputs, steps = [], []
    for proposer in ("none", "ngram"):
        engine = smollm_engine(smollm, smollm_bfloat16, EngineConfig(proposer=proposer))
        outputs.append(run(engine, requests))
        steps.append(engine.stats().num_steps)
    for request in requests:
        assert bits(outputs[1], request.request_id) == bits(outputs[0], request.request_id)
    assert engine.stats().num_accepted_tokens > 10
    assert steps[1] < steps[0]
