"""OpenAI's body to the engine's sampling parameters: defaults are made explicit, so that a result can be replayed."""

import hashlib

from pipeline.structured import asked_structure
from schemas.errors import InvalidValue
from schemas.requests import ChatRequest, CompletionRequest
from schemas.sampling import SamplingParams

_SEED_BYTES = 8
# OpenAI's defaults.
_TEMPERATURE = 1.0
_TOP_P = 1.0


def sampling_params(
    request: ChatRequest | CompletionRequest, *, request_id: str, max_tokens: int, vocab_size: int
) -> SamplingParams:
    """All that decides the next token of a request whose answer may have `max_tokens`.

    Raises:
        InvalidValue: fields contradict each other, or name tokens outside the vocabulary.
        RequestTooLarge: the structure of the answer is too large.
    """
    asked = asked_structure(request)
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise InvalidValue(f"min_tokens {min_tokens} is more than the {max_tokens} tokens allowed", param="min_tokens")
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        seed=seed_of(request_id) if request.seed is None else request.seed,
        temperature=_or(request.temperature, _TEMPERATURE),
        top_p=_or(request.top_p, _TOP_P),
        top_k=max(request.top_k or 0, 0),  # vLLM's -1 means "all", as 0 does
        min_p=_or(request.min_p, 0.0),
        presence_penalty=_or(request.presence_penalty, 0.0),
        frequency_penalty=_or(request.frequency_penalty, 0.0),
        repetition_penalty=_or(request.repetition_penalty, 1.0),
        logit_bias=_logit_bias(request.logit_bias or {}, vocab_size),
        num_choices=request.n or 1,
        top_logprobs=_top_logprobs(request),
        stop=_stop_strings(request.stop),
        stop_token_ids=_in_vocabulary(request.stop_token_ids or [], vocab_size),
        ignore_eos=request.ignore_eos,
        structure=asked.structure if asked else None,
    )


def seed_of(request_id: str) -> int:
    """The seed of a request that names none: it follows from the id, so that a replay samples alike. Below 2**63."""
    digest = hashlib.sha256(request_id.encode()).digest()
    return int.from_bytes(digest[:_SEED_BYTES], "big") >> 1


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _stop_strings(stop: str | list[str] | None) -> list[str]:
    strings = [stop] if isinstance(stop, str) else stop or []
    if "" in strings:
        raise InvalidValue("an empty stop string would end every answer before it begins", param="stop")
    return strings


def _top_logprobs(request: ChatRequest | CompletionRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        return request.logprobs
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidValue("`top_logprobs` needs `logprobs: true`", param="top_logprobs")
    return (request.top_logprobs or 0) if request.logprobs else None


def _logit_bias(bias: dict[str, float], vocab_size: int) -> dict[int, float]:
    try:
        by_token = {int(token): value for token, value in bias.items()}
    except ValueError as error:
        raise InvalidValue(f"keys of `logit_bias` are token ids: {error}", param="logit_bias") from error
    _check_ids(by_token, vocab_size, param="logit_bias")
    return by_token


def _in_vocabulary(token_ids: list[int], vocab_size: int) -> list[int]:
    _check_ids(token_ids, vocab_size, param="stop_token_ids")
    return token_ids


def _check_ids(token_ids: list[int] | dict[int, float], vocab_size: int, *, param: str) -> None:
    outside = next((i for i in token_ids if not 0 <= i < vocab_size), None)
    if outside is not None:
        raise InvalidValue(f"token id {outside} is not in the vocabulary of {vocab_size} tokens", param=param)
