"""The real model: the same tokens as transformers, and the same bits in any company, in the dtypes that are served."""

import json
from pathlib import Path
from typing import TypedDict

import pytest

from engine.config import EngineConfig
from engine.executor import LocalExecutor
from engine.types import GenerationOutput, GenerationRequest
from models.catalog import LoadedModel
from schemas.sampling import SamplingParams, TokenLogprob
from tests.engine.conftest import smollm_engine
from tests.engine.tiny import last, run, text, tokens

ORACLE = Path(__file__).parent.parent / "data" / "oracle" / "greedy.json"


class Answer(TypedDict):
    """One entry of the oracle's file."""

    prompt_token_ids: list[int]
    output_token_ids: list[int]
    text: str


ANSWERS: list[Answer] = json.loads(ORACLE.read_text())["answers"]
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
def test_company_chunks_preemptions_and_threads_change_no_bit(
    smollm: LoadedModel, executor: str, request: pytest.FixtureRequest
) -> None:
    weights: LocalExecutor = request.getfixturevalue(executor)
    prompt = ANSWERS[6]["prompt_token_ids"] * 5  # longer than a split of attention
    subjects = [subject(f"s{t}", prompt[:-t], temperature=0.8 * (t % 2)) for t in (1, 2)]
    company = [subject(f"c{n}", answer["prompt_token_ids"], temperature=1.0) for n, answer in enumerate(ANSWERS[:5])]

    def bits(outputs: list[GenerationOutput]) -> list[tuple[list[int], list[TokenLogprob]]]:
        mine = [(s.request_id, [o for o in outputs if o.request_id == s.request_id]) for s in subjects]
        return [(tokens(own, name), [p for output in own for p in output.logprobs or []]) for name, own in mine]

    alone = bits([output for s in subjects for output in run(smollm_engine(smollm, weights, EngineConfig()), [s])])
    assert all(len(token_ids) == 10 for token_ids, _ in alone)
    chunked = EngineConfig(max_running=5, max_tokens_per_step=50)
    assert bits(run(smollm_engine(smollm, weights, chunked), company + subjects)) == alone
    preempting = smollm_engine(smollm, weights, EngineConfig(), num_blocks=40)
    assert bits(run(preempting, subjects[::-1] + company)) == alone


def subject(request_id: str, prompt: list[int], *, temperature: float) -> GenerationRequest:
    sampling = SamplingParams(max_tokens=10, seed=3, temperature=temperature, top_logprobs=2, ignore_eos=True)
    return GenerationRequest(request_id=request_id, prompt_token_ids=prompt, sampling=sampling)
