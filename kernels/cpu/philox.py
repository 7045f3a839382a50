"""Philox4x32-10, a counter-based generator: the same numbers for a token wherever and whenever it is sampled.

Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. Checked against the known-answer
vectors of its authors' Random123. Words of 32 bits live in int64 tensors, since torch has no unsigned arithmetic.
"""

from typing import NamedTuple

import torch

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
MASK = 0xFFFFFFFF


class Words(NamedTuple):
    """Four words of 32 bits, as int64 tensors of shapes that broadcast."""

    w0: torch.Tensor
    w1: torch.Tensor
    w2: torch.Tensor
    w3: torch.Tensor


def philox(counter: Words, seed: torch.Tensor) -> Words:
    """The block of `counter` under the 64-bit key `seed` (int64, its low word first)."""
    key0, key1 = seed & MASK, (seed >> 32) & MASK
    c0, c1, c2, c3 = counter
    for number in range(ROUNDS):
        if number:
            key0, key1 = (key0 + KEY_STEPS[0]) & MASK, (key1 + KEY_STEPS[1]) & MASK
        # A product may pass 2^63 and wrap; its bits are the same, and the mask after the shift drops the sign.
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & MASK) ^ c1 ^ key0,
            product1 & MASK,
            ((product0 >> 32) & MASK) ^ c3 ^ key1,
            product0 & MASK,
        )
    return Words(*torch.broadcast_tensors(c0, c1, c2, c3))  # type: ignore[no-untyped-call]  # torch leaves it untyped


def uniform(seed: torch.Tensor, choice: torch.Tensor, index: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Uniform numbers in (0, 1), float64 `[rows, tokens]`, each by seed, choice, index and token id alone.

    seed, choice, index: int64 `[rows]`; token_ids: int64 `[rows, tokens]`. One block serves four neighbouring ids.
    """
    words = torch.stack(_blocks(seed, choice, index, token_ids >> 2), -1)
    word = words.gather(-1, (token_ids & 3)[..., None])[..., 0]
    return _to_unit(word)


def uniform_all(seed: torch.Tensor, choice: torch.Tensor, index: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The same numbers for token ids 0 to `vocab_size`, a quarter of the work."""
    blocks = torch.arange(-(-vocab_size // 4))[None]
    words = torch.stack(_blocks(seed, choice, index, blocks), -1)
    return _to_unit(words.flatten(1)[:, :vocab_size])


def _blocks(seed: torch.Tensor, choice: torch.Tensor, index: torch.Tensor, block: torch.Tensor) -> Words:
    return philox(Words(block, index[:, None], choice[:, None], torch.zeros_like(index[:, None])), seed[:, None])


def _to_unit(word: torch.Tensor) -> torch.Tensor:
    return (word.double() + 0.5) * 2.0**-32
