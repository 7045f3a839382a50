"""How tokens are chosen: the sampling parameters as they travel in a batch and as the engine uses them."""

from typing import Annotated, Literal

import msgspec

from schemas.structured import OutputStructure

FinishReason = Literal["stop", "length", "cancelled", "error"]

MAX_STOP_STRINGS = 16
MAX_CHOICES = 64
MAX_TOP_LOGPROBS = 20


class SamplingParams(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """Everything that decides the next token, given the logits.

    `temperature` 0 is greedy. `seed` is always set: where the client gave none it follows from the request id, so
    that every request can be replayed. `num_choices` is OpenAI's `n`. `top_logprobs` None returns no logprobs.
    `structure` leaves only the tokens with which the text can still become what it asks for.
    """

    max_tokens: Annotated[int, msgspec.Meta(ge=1)]
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    temperature: Annotated[float, msgspec.Meta(ge=0.0, le=100.0)] = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0
    min_p: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.0
    presence_penalty: Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)] = 0.0
    frequency_penalty: Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)] = 0.0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0.0, le=10.0)] = 1.0
    logit_bias: dict[int, float] = {}
    num_choices: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] = 1
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    stop: Annotated[list[str], msgspec.Meta(max_length=MAX_STOP_STRINGS)] = []
    stop_token_ids: list[int] = []
    min_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    ignore_eos: bool = False
    structure: OutputStructure | None = None


class TokenLogprob(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The logprob of one token (natural logarithm) and, where asked for, the likeliest alternatives."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]] = []
