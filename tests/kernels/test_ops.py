"""The door: what belongs to no known device is refused by name."""

import pytest
import torch

from kernels import ops
from kernels.errors import BadKernelInput, KernelUnavailable
from kernels.paging import BLOCK_SIZE, KVShape, PagedCache


def test_a_device_without_kernels_is_refused() -> None:
    meta = torch.zeros(2, 4, device="meta")
    with pytest.raises(KernelUnavailable, match="swiglu runs on CPU tensors, not on 'meta'"):
        ops.swiglu(meta)
    with pytest.raises(KernelUnavailable, match="pack_linear"):
        ops.pack_linear(meta)


class CudaLike:
    """Stands for a tensor on a GPU, which this machine need not have."""

    is_cuda = True


def test_cuda_says_that_its_kernels_are_still_to_come() -> None:
    with pytest.raises(KernelUnavailable, match="no Triton kernel yet"):
        ops.swiglu(CudaLike())  # type: ignore[arg-type]  # only `is_cuda` is asked


SHAPE = KVShape(num_layers=2, num_kv_heads=3, head_dim=8, dtype=torch.bfloat16)


def test_a_cache_has_one_more_block_of_zeros_and_the_bytes_that_it_says() -> None:
    cache = PagedCache(SHAPE, 5, torch.device("cpu"))
    assert cache.null_block == 5
    assert cache.storage.nbytes == 6 * SHAPE.block_bytes == 6 * 2 * 2 * 3 * BLOCK_SIZE * 8 * 2
    assert not cache.storage.any()
    assert cache.storage.data_ptr() % 64 == 0


def test_blocks_are_copied_and_cleared_with_all_their_layers() -> None:
    cache = PagedCache(SHAPE, 3, torch.device("cpu"))
    cache.storage[0] = 7
    cache.copy_block(0, 2)
    cache.zero_blocks([0])
    assert (cache.storage[2] == 7).all()
    assert not cache.storage[[0, 1, 3]].any()


def test_a_cache_without_blocks_is_refused() -> None:
    with pytest.raises(BadKernelInput, match="at least one block"):
        PagedCache(SHAPE, 0, torch.device("cpu"))
