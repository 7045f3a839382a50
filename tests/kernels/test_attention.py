"""Paged attention against plain attention, and its bits across batches, chunks and tiles."""

import itertools
import math
import random
from dataclasses import dataclass

import pytest
import torch

from kernels import ops
from kernels.cpu.attention import LARGE_TILE, tile_sizes
from kernels.cpu.rows import plan_rows
from kernels.paging import BLOCK_SIZE, SPLIT_SIZE, KVShape, PagedCache, RowSpan

# Absolute, for numbers of order 1: scores are rounded to the dtype before the softmax.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 5e-2}
DTYPES = list(TOLERANCE)
THETA = 10_000.0


@dataclass(frozen=True)
class Heads:
    """A shape of attention."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


SHAPES = [Heads(9, 3, 64), Heads(4, 4, 16), Heads(8, 1, 32)]


class Case:
    """Sequences of given lengths with random queries, keys and values, and blocks in random order."""

    def __init__(self, heads: Heads, dtype: torch.dtype, lengths: list[int], seed: int = 0) -> None:
        self.heads, self.dtype, self.lengths = heads, dtype, lengths
        generator = torch.Generator().manual_seed(seed)
        width = (heads.num_heads + 2 * heads.num_kv_heads) * heads.head_dim
        self.qkv = [torch.randn(n, width, generator=generator).to(dtype) for n in lengths]
        num_blocks = [math.ceil(n / BLOCK_SIZE) for n in lengths]
        blocks = list(range(sum(num_blocks) + 3))
        random.Random(seed).shuffle(blocks)
        places = iter(blocks)
        self.tables = [list(itertools.islice(places, n)) for n in num_blocks]
        shape = KVShape(num_layers=2, num_kv_heads=heads.num_kv_heads, head_dim=heads.head_dim, dtype=dtype)
        self.cache = PagedCache(shape, len(blocks), torch.device("cpu"))
        self.rotary = ops.rotary_table(2048, heads.head_dim, THETA)

    def attend(self, steps: list[list[tuple[int, int, int]]], tiles: tuple[int, int] | None = None) -> torch.Tensor:
        """Run steps of (sequence, start, end), on both layers; returns the last layer's rows, sequence by sequence."""
        results: dict[tuple[int, int], torch.Tensor] = {}
        for step in steps:
            spans = [RowSpan(start, end - start, self.tables[s]) for s, start, end in step]
            qkv = torch.cat([self.qkv[s][start:end] for s, start, end in step])
            if tiles is None:
                plan = ops.plan_rows(spans, self.cache, self.rotary, self.heads.num_heads)
            else:
                plan = plan_rows(spans, self.cache, self.rotary, self.heads.num_heads, tiles)
            for layer in (0, 1):
                queries = ops.rotate_and_store(qkv, plan, self.cache, layer)
                rows = ops.attend(queries, plan, self.cache, layer)
            places = [(s, position) for s, start, end in step for position in range(start, end)]
            results |= dict(zip(places, rows, strict=True))
        return torch.stack([results[place] for place in sorted(results)])

    def expected(self) -> torch.Tensor:
        """Plain attention in float64, each sequence by itself."""
        return torch.cat([self._plain(qkv.double()) for qkv in self.qkv])

    def _plain(self, qkv: torch.Tensor) -> torch.Tensor:
        counts = [self.heads.num_heads, self.heads.num_kv_heads, self.heads.num_kv_heads]
        query, key, value = (
            part.transpose(0, 1) for part in torch.split(qkv.view(len(qkv), -1, self.heads.head_dim), counts, dim=1)
        )
        group = self.heads.num_heads // self.heads.num_kv_heads
        query, key = rotate(query), rotate(key).repeat_interleave(group, 0)
        scores = query @ key.transpose(1, 2) / math.sqrt(self.heads.head_dim)
        hidden = torch.ones(len(qkv), len(qkv), dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        return (weights @ value.repeat_interleave(group, 0)).transpose(0, 1).flatten(1)

    def whole(self) -> list[list[tuple[int, int, int]]]:
        """All prompts in one step."""
        return [[(s, 0, n) for s, n in enumerate(self.lengths)]]

    def singly(self) -> list[list[tuple[int, int, int]]]:
        """Token by token, all sequences side by side."""
        return [[(s, p, p + 1) for s, n in enumerate(self.lengths) if p < n] for p in range(max(self.lengths))]

    def chunks(self, size: int) -> list[list[tuple[int, int, int]]]:
        """Chunk by chunk, one sequence at a time, the last one first."""
        return [
            [(s, start, min(start + size, n))]
            for s, n in reversed(list(enumerate(self.lengths)))
            for start in range(0, n, size)
        ]


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Half-split rotary embedding of `[heads, positions, head_dim]`, written as complex numbers."""
    half = x.shape[-1] // 2
    frequencies = THETA ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * frequencies
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((turned.real, turned.imag), -1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_attention_is_what_it_should_be(dtype: torch.dtype, heads: Heads) -> None:
    case = Case(heads, dtype, [1, 15, 16, 17, SPLIT_SIZE, SPLIT_SIZE + 1, 2 * SPLIT_SIZE + 40])
    difference = case.attend(case.whole()).double() - case.expected()
    assert difference.abs().max() < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_prefill_decode_and_chunks_give_the_same_bits(dtype: torch.dtype, heads: Heads) -> None:
    """Layer 1's rows, and with them layer 0's stored keys and values, in each order of computing them."""
    lengths = [3, 40, SPLIT_SIZE + 30]
    case = Case(heads, dtype, lengths)
    whole = case.attend(case.whole())
    stored = [case.cache.storage[table].clone() for table in case.tables]
    for steps in (case.singly(), case.chunks(7), case.chunks(100)):
        again = Case(heads, dtype, lengths)
        assert torch.equal(again.attend(steps), whole)
        for before, table in zip(stored, again.tables, strict=True):
            assert torch.equal(again.cache.storage[table], before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", SHAPES, ids=str)
def test_every_allowed_tile_gives_the_same_bits(dtype: torch.dtype, heads: Heads) -> None:
    small, large = tile_sizes(heads.num_heads // heads.num_kv_heads, heads.head_dim, dtype, torch.get_num_threads())
    assert large == LARGE_TILE
    case = Case(heads, dtype, [1, 50, SPLIT_SIZE + 5])
    whole = case.attend(case.whole(), (large, large))
    assert torch.equal(Case(heads, dtype, case.lengths).attend(case.singly(), (small, large)), whole)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_others_in_the_step_change_nothing(dtype: torch.dtype) -> None:
    heads = SHAPES[0]
    case = Case(heads, dtype, [20, 5, 3 * SPLIT_SIZE, 33, 90])
    together = torch.split(case.attend(case.whole()), case.lengths)
    for sequence, length in enumerate(case.lengths):
        alone = Case(heads, dtype, case.lengths).attend([[(sequence, 0, length)]])
        assert torch.equal(alone, together[sequence])


def test_what_lies_in_blocks_behind_the_context_is_never_seen() -> None:
    case, dirty = (Case(SHAPES[0], torch.float32, [21, 300]) for _ in range(2))
    dirty.cache.storage[: dirty.cache.num_blocks].fill_(1e30)
    assert torch.equal(dirty.attend(dirty.whole()), case.attend(case.whole()))


def test_a_span_starts_anywhere_and_ends_in_a_later_split() -> None:
    case = Case(SHAPES[0], torch.float32, [2 * SPLIT_SIZE + 10])
    whole = case.attend(case.whole())
    cuts = [0, 1, 250, 251, SPLIT_SIZE, SPLIT_SIZE + 9, 2 * SPLIT_SIZE + 10]
    steps = [[(0, start, end)] for start, end in itertools.pairwise(cuts)]
    assert torch.equal(Case(SHAPES[0], torch.float32, case.lengths).attend(steps), whole)
