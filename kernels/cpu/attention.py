"""Attention over the paged cache: one path for prefill and decode, so that recomputed KV equals decoded KV bit by bit.

Each row attends its context in splits at fixed positions (flash-decoding, Dao et al. 2023), each split by two batched
products of one size; partial results merge in the order of the splits. Rows never meet: neither the batch, nor the
chunk of a prompt, nor a row's place decides its bits.
"""

import functools
import itertools

import torch

from kernels.cpu.rows import RowPlan
from kernels.cpu.threads import using_threads
from kernels.paging import BLOCK_SIZE, SPLIT_SIZE, PagedCache

# Rows of a sequence in one product when a step holds prompts: 16 rows make good use of each gathered split, and more
# waste places at the ends of chunks.
LARGE_TILE = 16
SMALL_TILES = (1, 2, 4, 8)
TRIED_BATCHES = (1, 2, 3, 5, 8, 13)


def attend(queries: torch.Tensor, plan: RowPlan, cache: PagedCache, layer: int) -> torch.Tensor:
    """Causal attention of scaled queries `[rows, num_heads, head_dim]` over each row's own context in the cache.

    Returns `[rows, num_heads * head_dim]` of the cache's dtype. The rows' own keys and values must be stored already.
    """
    num_kv_heads, head_dim = cache.shape.num_kv_heads, cache.shape.head_dim
    pages = cache.storage.view(-1, BLOCK_SIZE * head_dim)
    torch.index_select(pages, 0, plan.gather_rows(layer), out=plan.gathered)
    keys, values = plan.gathered.view(2, -1, SPLIT_SIZE, head_dim)
    tiles = _to_tiles(queries, plan, num_kv_heads)
    items = tiles if len(plan.splits) == 1 else torch.cat([tiles[:count] for count in plan.splits])
    scores = torch.bmm(items.reshape(-1, *items.shape[2:]), keys.transpose(1, 2))
    by_item = scores.view(len(plan.mask), num_kv_heads, -1, SPLIT_SIZE)
    by_item.add_(plan.mask)
    weights = torch.softmax(scores, -1)
    parts = torch.bmm(weights, values).view(*by_item.shape[:3], head_dim)
    merged = parts if len(plan.splits) == 1 else _merge_splits(_log_sums(scores, weights, plan), parts, plan)
    return _from_tiles(merged, plan, queries)


def _to_tiles(queries: torch.Tensor, plan: RowPlan, num_kv_heads: int) -> torch.Tensor:
    """To `[tiles, num_kv_heads, size * group, head_dim]`."""
    num_rows, num_heads, head_dim = queries.shape
    group = num_heads // num_kv_heads
    if plan.is_plain:
        return queries.view(num_rows, num_kv_heads, group, head_dim)
    placed = queries.reshape(num_rows, -1).index_select(0, plan.source)
    tiles = placed.view(plan.num_tiles, plan.tile_size, num_kv_heads, group, head_dim).transpose(1, 2)
    return tiles.reshape(plan.num_tiles, num_kv_heads, plan.tile_size * group, head_dim)


def _from_tiles(merged: torch.Tensor, plan: RowPlan, queries: torch.Tensor) -> torch.Tensor:
    if plan.is_plain:
        return merged.reshape(plan.num_rows, -1)
    num_kv_heads, head_dim = merged.shape[1], merged.shape[3]
    tiles = merged.view(plan.num_tiles, num_kv_heads, plan.tile_size, -1, head_dim).transpose(1, 2)
    return tiles.reshape(plan.num_tiles * plan.tile_size, -1).index_select(0, plan.place)


def _log_sums(scores: torch.Tensor, weights: torch.Tensor, plan: RowPlan) -> torch.Tensor:
    """The logarithm of each row's sum of exponentials, float32 `[items, num_kv_heads, size * group]`.

    Read off the softmax: its largest weight is exp(largest score) / sum. That is as exact as the weights are, and
    another exponential of every score would take longer than both products.
    """
    largest = scores.amax(-1).float() - torch.log(weights.amax(-1).float())
    return largest.view(len(plan.mask), -1, plan.mask.shape[2])


def _merge_splits(log_sums: torch.Tensor, parts: torch.Tensor, plan: RowPlan) -> torch.Tensor:
    """Weigh each split's result by its share of the softmax, in float32 and in the order of the splits.

    A tile with one split gets weight exactly 1, so that it does not matter whether others in the step have more.
    """
    bounds = list(itertools.pairwise([0, *itertools.accumulate(plan.splits)]))
    largest = log_sums[: plan.num_tiles].clone()
    for start, end in bounds[1:]:
        seen = largest[: end - start]
        torch.maximum(seen, log_sums[start:end], out=seen)
    total = torch.zeros_like(largest)
    merged = torch.zeros((*largest.shape, parts.shape[-1]), dtype=torch.float32)
    for start, end in bounds:
        shares = torch.exp(log_sums[start:end] - largest[: end - start])
        total[: end - start] += shares
        merged[: end - start] += parts[start:end].float().mul_(shares[..., None])
    return merged.div_(total[..., None]).to(parts.dtype)


@functools.cache
def tile_sizes(group: int, head_dim: int, dtype: torch.dtype, threads: int) -> tuple[int, int]:
    """Rows in a tile, for steps of single rows and for all others.

    A small tile is used only if this processor's products give each row the same bits in both sizes.
    """
    for small in SMALL_TILES:
        if all(_same_bits(small, group, head_dim, dtype, count) for count in {1, threads}):
            return small, LARGE_TILE
    return LARGE_TILE, LARGE_TILE


def _same_bits(small: int, group: int, head_dim: int, dtype: torch.dtype, threads: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    batch, rows = max(TRIED_BATCHES), LARGE_TILE * group
    queries = torch.randn(batch, rows, head_dim, generator=generator).to(dtype)
    keys = torch.randn(batch, SPLIT_SIZE, head_dim, generator=generator).to(dtype)
    weights = torch.randn(batch, rows, SPLIT_SIZE, generator=generator).softmax(-1).to(dtype)
    with using_threads(threads):
        return _rows_agree(queries, keys.transpose(1, 2), small * group) and _rows_agree(weights, keys, small * group)


def _rows_agree(left: torch.Tensor, right: torch.Tensor, num_rows: int) -> bool:
    reference = torch.bmm(left, right)
    return all(
        torch.equal(
            torch.bmm(left[:batch, start : start + num_rows].contiguous(), right[:batch]),
            reference[:batch, start : start + num_rows],
        )
        for batch in TRIED_BATCHES
        for start in range(0, left.shape[1] - num_rows + 1, num_rows)
    )
