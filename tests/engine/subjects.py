"""Requests whose bits are compared, and others to keep them company."""

import random

import torch

from engine.types import GenerationOutput, GenerationRequest
from schemas.sampling import TokenLogprob
from tests.engine.drafting import Oracle
from tests.engine.structured.structures import PERSON, WORDS
from tests.engine.tiny import run, text, tiny_engine, tiny_request, tokens

DTYPES = [torch.float32, torch.bfloat16]
MAX_TOKENS = 20
# Longer than one split of attention, so that merging splits is part of every comparison.
LONG = [(7 * i * i + 3 * i) % 256 for i in range(270)]
SHORT = list(b"Once upon a time")


def subjects() -> list[GenerationRequest]:
    """The requests whose bits are compared: greedy and sampled, short and long, with each kind of penalty."""
    return [
        tiny_request("greedy", SHORT, max_tokens=MAX_TOKENS, top_logprobs=3),
        tiny_request("sampled", SHORT, max_tokens=MAX_TOKENS, temperature=0.9, seed=5, top_logprobs=3),
        tiny_request(
            "shaped", LONG, max_tokens=MAX_TOKENS, temperature=1.3, top_p=0.9, top_k=40, min_p=0.01, seed=6,
            presence_penalty=0.4, frequency_penalty=0.3, repetition_penalty=1.1, logit_bias={9: 1.5}, top_logprobs=1,
            min_tokens=4,
        ),
        tiny_request("long", LONG[::-1], max_tokens=MAX_TOKENS, top_logprobs=0),
        tiny_request("structured", SHORT, max_tokens=MAX_TOKENS, top_logprobs=3, structure=WORDS),
        tiny_request(
            "schema", SHORT, max_tokens=MAX_TOKENS, temperature=1.0, top_p=0.95, seed=8, top_logprobs=2, min_tokens=4,
            frequency_penalty=0.3, structure=PERSON,
        ),
    ]  # fmt: skip


Bits = tuple[list[int], list[TokenLogprob], str]


def bits(outputs: list[GenerationOutput], request_id: str, choice: int = 0) -> Bits:
    """Tokens, logprobs and text; equal only if every bit is."""
    mine = [o for o in outputs if (o.request_id, o.choice) == (request_id, choice)]
    return tokens(mine, request_id, choice), [p for o in mine for p in o.logprobs or []], text(mine, request_id, choice)


def company(size: int, seed: int) -> list[GenerationRequest]:
    """Other requests, of all lengths and kinds."""
    numbers = random.Random(seed)
    return [
        tiny_request(
            f"other{i}",
            [numbers.randrange(256) for _ in range(numbers.choice([1, 5, 16, 33, 100, 300]))],
            max_tokens=numbers.randrange(1, 40),
            temperature=numbers.choice([0.0, 0.7, 1.5]),
            top_p=numbers.choice([1.0, 0.8]),
            top_logprobs=numbers.choice([None, 5]),
            seed=i,
            structure=numbers.choice([None, None, PERSON]),
        )
        for i in range(size)
    ]


def oracle(outputs: list[GenerationOutput], *, share_right: float) -> Oracle:
    """A proposer that has seen what these requests give."""
    return Oracle(lambda s: tokens(outputs, s.request.request_id, s.choice), share_right=share_right)


Alone = dict[tuple[torch.dtype, str], Bits]


def bits_alone() -> Alone:
    """What each subject gives by itself."""
    return {
        (dtype, subject.request_id): bits(run(tiny_engine(dtype), [subject]), subject.request_id)
        for dtype in DTYPES
        for subject in subjects()
    }


def assert_as_alone(alone: Alone, dtype: torch.dtype, outputs: list[GenerationOutput]) -> None:
    """Whatever happened around them, the subjects gave the same bits."""
    for subject in subjects():
        assert bits(outputs, subject.request_id) == alone[dtype, subject.request_id]
