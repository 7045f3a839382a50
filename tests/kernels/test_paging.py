"""Blocks as bytes, and what is cleared of them."""

import pytest
import torch

from kernels.errors import BadKernelInput
from kernels.paging import BLOCK_SIZE, KVShape, PagedCache

CPU = torch.device("cpu")


def filled(dtype: torch.dtype, seed: int = 0, num_blocks: int = 3) -> PagedCache:
    cache = PagedCache(KVShape(num_layers=2, num_kv_heads=3, head_dim=4, dtype=dtype), num_blocks, CPU)
    cache.storage[:num_blocks].copy_(torch.randn(cache.storage[:num_blocks].shape, generator=torch.manual_seed(seed)))
    return cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_block_that_is_written_elsewhere_is_the_same_bits(dtype: torch.dtype) -> None:
    source, target = filled(dtype), filled(dtype, seed=1)
    before = target.storage.clone()
    content = source.read_block(1)
    assert len(content) == source.shape.block_bytes
    target.write_block(2, memoryview(content))
    assert torch.equal(target.storage[2], source.storage[1])
    assert torch.equal(target.storage[[0, 1, 3]], before[[0, 1, 3]])


def test_a_block_of_another_size_is_refused_and_nothing_written() -> None:
    cache = filled(torch.float32)
    before = cache.storage.clone()
    for content in (b"", cache.read_block(0)[:-4], cache.read_block(0) + bytes(4)):
        with pytest.raises(BadKernelInput, match=f"has {cache.shape.block_bytes} bytes"):
            cache.write_block(1, content)
    assert torch.equal(cache.storage, before)


def test_the_layout_names_everything_that_the_bytes_depend_on() -> None:
    shapes = [
        KVShape(2, 3, 4, torch.float32),
        KVShape(3, 3, 4, torch.float32),
        KVShape(2, 4, 4, torch.float32),
        KVShape(2, 3, 8, torch.float32),
        KVShape(2, 3, 4, torch.bfloat16),
    ]
    assert len({PagedCache(shape, 1, CPU).layout for shape in shapes}) == len(shapes)


def test_one_token_is_cleared_in_all_layers_and_no_other() -> None:
    cache = filled(torch.float32)
    expected = cache.storage.clone()
    expected[2, :, :, :, 5] = 0
    cache.zero_row([0, 2], BLOCK_SIZE + 5)
    assert torch.equal(cache.storage, expected)
