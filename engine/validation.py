"""What a request must fulfil before the engine takes it, so that nothing in a step can fail for its sake."""

from engine.types import GenerationRequest
from models.kv_keys import BLOCK_SIZE
from schemas.errors import ContextTooLong, InvalidValue


def check_request(request: GenerationRequest, *, context_length: int, vocab_size: int, num_blocks: int) -> None:
    """InvalidValue or ContextTooLong, naming the remedy, for a request that can never run.

    `vocab_size` counts the tokens that the tokenizer knows: logits have that width.
    """
    if not request.prompt_token_ids:
        raise InvalidValue("The prompt has no tokens.", param="prompt")
    if request.sampling.structure is not None and request.sampling.ignore_eos:
        raise InvalidValue("ignore_eos goes on after the end that the structure of the answer has.", param="ignore_eos")
    _check_tokens(request, vocab_size)
    _check_emitted(request)
    num_tokens = len(request.prompt_token_ids) + request.sampling.max_tokens
    if num_tokens > context_length:
        raise ContextTooLong(
            f"The prompt has {len(request.prompt_token_ids)} tokens and max_tokens is {request.sampling.max_tokens}: "
            f"together more than the context of {context_length}. Shorten the prompt or lower max_tokens.",
            param="max_tokens",
        )
    if num_tokens > num_blocks * BLOCK_SIZE:
        raise ContextTooLong(
            f"The request needs KV for {num_tokens} tokens, and this worker has room for {num_blocks * BLOCK_SIZE}: "
            "lower max_tokens, or raise the worker's engine.kv_bytes.",
            param="max_tokens",
        )


def _check_tokens(request: GenerationRequest, vocab_size: int) -> None:
    sampling = request.sampling
    named = {
        "prompt": request.prompt_token_ids,
        "logit_bias": sampling.logit_bias,
        "stop_token_ids": sampling.stop_token_ids,
        "emitted": [token_id for token_ids in request.emitted.values() for token_id in token_ids],
    }
    for param, token_ids in named.items():
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= vocab_size):
            raise InvalidValue(f"{param} has a token id outside the vocabulary of {vocab_size} tokens.", param=param)


def _check_emitted(request: GenerationRequest) -> None:
    for choice, token_ids in request.emitted.items():
        if not 0 <= choice < request.sampling.num_choices:
            raise InvalidValue(f"Tokens were emitted for choice {choice} of {request.sampling.num_choices}.")
        if len(token_ids) > request.sampling.max_tokens:
            raise InvalidValue(f"Choice {choice} has {len(token_ids)} emitted tokens, above max_tokens.")
