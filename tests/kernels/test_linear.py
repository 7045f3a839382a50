"""Products are right, and a row's bits depend on that row alone."""

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import ops
from kernels.cpu.linear import (
    MAX_PADDING,
    ONLY_SIZE,
    ROW_SIZES,
    PackedLinear,
    invariant_sizes,
    linear,
    pack_linear,
    row_parts,
)
from kernels.cpu.threads import using_threads
from kernels.errors import BadKernelInput

# Tolerance relative to the largest number: a bfloat16 has 8 bits of precision.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = list(TOLERANCE)
# (out, in): the real model's shapes, and odd ones.
SHAPES = [(576, 1536), (960, 576), (48, 40), (7, 5)]


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("num_rows", [1, 2, 5, 33, 600])
def test_linear_is_the_product(dtype: torch.dtype, shape: tuple[int, int], num_rows: int) -> None:
    weight, x = random(*shape, dtype=dtype), random(num_rows, shape[1], dtype=dtype)
    expected = x.double() @ weight.double().T
    result = ops.linear(x, ops.pack_linear(weight))
    assert result.dtype == dtype
    assert result.shape == expected.shape
    assert (result.double() - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_has_the_same_bits_in_any_number_of_rows_and_threads(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """Other random numbers than the probe's, and numbers of rows that it never tried."""
    weight = ops.pack_linear(random(*shape, dtype=dtype))
    x = random(530, shape[1], dtype=dtype)
    with using_threads(1):
        alone = torch.cat([ops.linear(row[None], weight) for row in x])
    for threads in (1, 2):
        with using_threads(threads):
            for num_rows in (2, 3, 5, 7, 13, 31, 50, 129, 511, 530):
                assert torch.equal(ops.linear(x[-num_rows:], weight), alone[-num_rows:])


@pytest.mark.parametrize("num_rows", [1, 31, 32, 33, 70])
def test_a_processor_on_which_no_two_sizes_agree_gets_one_size(num_rows: int) -> None:
    weight, x = random(48, 40, dtype=torch.float32), random(70, 40, dtype=torch.float32)
    packed = pack_linear(weight)
    single = PackedLinear(packed.weight, 48, 40, torch.float32, packed=packed.packed, row_sizes=(ONLY_SIZE,))
    result = linear(x[:num_rows], single)
    assert result.shape == (num_rows, 48)
    assert torch.allclose(result, x[:num_rows] @ weight.T, atol=1e-4)
    assert torch.equal(result[:1], linear(x[:1], single))


@settings(deadline=None)
@given(
    num_rows=st.integers(1, 3000),
    sizes=st.one_of(st.just(ROW_SIZES), st.just((ONLY_SIZE,)), st.sets(st.sampled_from(ROW_SIZES), min_size=1)),
)
def test_rows_are_cut_into_sizes_that_were_tried_with_little_padding(num_rows: int, sizes: Iterable[int]) -> None:
    ordered = tuple(sorted(sizes))
    parts = row_parts(num_rows, ordered)
    assert sum(parts) == num_rows
    assert all(part in ordered for part in parts[:-1])
    assert 1 <= parts[-1] <= ordered[-1]
    padding = min(size for size in ordered if size >= parts[-1]) - parts[-1]
    assert padding <= MAX_PADDING or parts[-1] < ordered[0]


def test_without_onednn_the_weights_stay_as_they_are() -> None:
    weight, x = random(48, 40, dtype=torch.float32), random(3, 40, dtype=torch.float32)
    plain = PackedLinear(weight, 48, 40, torch.float32, packed=False, row_sizes=(ONLY_SIZE,))
    assert torch.allclose(linear(x, plain), x @ weight.T, atol=1e-4)


def test_sizes_are_tried_once_for_a_shape() -> None:
    assert invariant_sizes(48, 40, torch.float32, 1) is invariant_sizes(48, 40, torch.float32, 1)


def test_a_wrong_width_or_dtype_is_refused() -> None:
    weight = ops.pack_linear(random(48, 40, dtype=torch.float32))
    with pytest.raises(BadKernelInput, match=r"wants \[rows, 40\]"):
        ops.linear(torch.zeros(2, 41), weight)
    with pytest.raises(BadKernelInput, match=r"bfloat16"):
        ops.linear(torch.zeros(2, 40, dtype=torch.bfloat16), weight)
