"""What a matcher allows, looked at one token at a time, and answers of a model of pure noise."""

import random

import llguidance
import numpy as np

from models.tokenizer import Tokenizer


def allowed(matcher: llguidance.LLMatcher) -> list[int]:
    """The tokens that may come next, in order."""
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
    assert not matcher.is_error(), matcher.get_error()
    token_ids: list[int] = np.nonzero(bits)[0].tolist()
    return token_ids


def accepts(matcher: llguidance.LLMatcher, tokenizer: Tokenizer, text: str) -> bool:
    """Whether an answer may be exactly this, as the model would write it."""
    state = matcher.deep_copy()
    token_ids = tokenizer.encode(text, special=False)
    return state.try_consume_tokens(token_ids) == len(token_ids) and state.is_accepting()


def noise(matcher: llguidance.LLMatcher, tokenizer: Tokenizer, seed: int, *, max_tokens: int = 400) -> str | None:
    """The text of an answer whose every token is drawn from those allowed; None if it does not end in time."""
    numbers, state, token_ids = random.Random(seed), matcher.deep_copy(), list[int]()
    while len(token_ids) < max_tokens:
        token_id = numbers.choice(allowed(state))
        if token_id in tokenizer.eos_token_ids:
            assert state.is_accepting()
            return tokenizer.decode(token_ids)
        assert state.consume_token(token_id)
        token_ids.append(token_id)
    return None
