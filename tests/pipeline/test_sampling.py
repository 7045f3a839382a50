import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.sampling import sampling_params, seed_of
from schemas.errors import InvalidValue
from schemas.requests import ChatRequest, CompletionRequest
from schemas.sampling import SamplingParams
from tests.pipeline.builders import chat, completion


def params(request: ChatRequest | CompletionRequest, request_id: str = "r-1", max_tokens: int = 16) -> SamplingParams:
    return sampling_params(request, request_id=request_id, max_tokens=max_tokens, vocab_size=1000)


def test_what_the_request_leaves_open_is_openai_s_default() -> None:
    assert params(chat(), "r-1") == SamplingParams(max_tokens=16, seed=seed_of("r-1"))


def test_every_field_of_the_request_arrives() -> None:
    fields: dict[str, Any] = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "presence_penalty": 0.2, "frequency_penalty": 0.3,
        "repetition_penalty": 1.1, "seed": 42, "stop": ["a", "b"], "stop_token_ids": [5], "min_tokens": 2,
        "ignore_eos": True,
    }  # fmt: skip
    request = chat(**fields, n=3, logit_bias={"5": -1.0}, logprobs=True, top_logprobs=4)
    expected = SamplingParams(**fields, max_tokens=16, num_choices=3, logit_bias={5: -1.0}, top_logprobs=4)
    assert params(request) == expected


def test_greedy_stays_greedy() -> None:
    assert params(chat(temperature=0.0)).temperature == 0.0


@pytest.mark.parametrize("top_k", [None, 0, -1])
def test_no_limit_of_candidates_is_zero(top_k: int | None) -> None:
    assert params(chat(top_k=top_k)).top_k == 0


def test_one_stop_string_becomes_a_list() -> None:
    assert params(chat(stop="END")).stop == ["END"]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (chat(), None),
        (chat(logprobs=True), 0),
        (chat(logprobs=True, top_logprobs=3), 3),
        (completion(), None),
        (completion(logprobs=0), 0),
        (completion(logprobs=5), 5),
    ],
)
def test_logprobs_are_given_where_they_were_asked_for(request_: ChatRequest, expected: int | None) -> None:
    assert params(request_).top_logprobs == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x", ""]}, "stop"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias"),
        ({"logit_bias": {"1000": 1.0}}, "logit_bias"),
        ({"logit_bias": {"-1": 1.0}}, "logit_bias"),
        ({"stop_token_ids": [1000]}, "stop_token_ids"),
    ],
)
def test_a_field_that_cannot_hold_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        params(chat(**fields))
    assert caught.value.param == param


@given(st.text(min_size=1, max_size=128))
def test_a_seed_follows_from_any_request_id_and_fits_63_bits(request_id: str) -> None:
    assert 0 <= seed_of(request_id) < 2**63
    assert seed_of(request_id) == seed_of(request_id)


def test_requests_without_a_seed_do_not_sample_alike() -> None:
    assert len({seed_of(f"r-{i}") for i in range(1000)}) == 1000


def test_a_seed_is_the_same_in_every_process() -> None:
    code = "from pipeline.sampling import seed_of; print(seed_of('r-1'))"
    seeds = {
        int(subprocess.check_output([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed})) for seed in ("1", "2")
    }
    assert seeds == {seed_of("r-1")}


@given(
    st.builds(
        chat,
        temperature=st.none() | st.floats(0, 2),
        top_p=st.none() | st.floats(0, 1, exclude_min=True),
        top_k=st.none() | st.integers(-1, 50),
        n=st.none() | st.integers(1, 8),
        seed=st.none() | st.integers(0, 2**63 - 1),
        logit_bias=st.none() | st.dictionaries(st.integers(0, 999).map(str), st.floats(-100, 100), max_size=3),
    )
)
def test_what_is_made_is_valid_and_survives_the_wire(request: ChatRequest) -> None:
    made = params(request)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(made), type=SamplingParams) == made
