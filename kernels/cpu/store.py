"""Rotates queries and keys and writes keys and values to the cache, in as few passes as torch allows."""

import torch

from kernels.cpu.rows import RowPlan
from kernels.paging import PagedCache


def rotate_and_store(qkv: torch.Tensor, plan: RowPlan, cache: PagedCache, layer: int) -> torch.Tensor:
    """Turn queries and keys, write keys and values to the cache; returns the scaled queries.

    qkv: `[rows, (num_heads + 2 * num_kv_heads) * head_dim]`; returns `[rows, num_heads, head_dim]`, both of the cache's
    dtype. Computed in float32 and rounded once.
    """
    head_dim = cache.shape.head_dim
    heads = qkv.view(qkv.shape[0], -1, head_dim).float()
    rolled = torch.roll(heads, head_dim // 2, -1)
    turned = (heads * plan.rotary.cos).add_(rolled.mul_(plan.rotary.sin)).to(cache.shape.dtype)
    num_heads = turned.shape[1] - 2 * cache.shape.num_kv_heads
    vectors = cache.storage.view(-1, head_dim)
    vectors.index_copy_(0, plan.write_rows(layer), turned[:, num_heads:].reshape(-1, head_dim))
    return turned[:, :num_heads]
