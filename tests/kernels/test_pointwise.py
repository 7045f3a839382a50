"""Norms, activation and embedding against their definitions; bits of a row in any company and on any threads."""

import pytest
import torch

from kernels import ops
from kernels.cpu.threads import using_threads

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = list(TOLERANCE)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(1, 576), (5, 64), (130, 40)], ids=str)
def test_rms_norm_adds_and_normalises(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    hidden, delta, weight = random(*shape), random(*shape).flip(0).to(dtype), random(shape[1])
    stream = hidden.clone()
    result = ops.rms_norm(stream, delta, weight, 1e-5, dtype)
    total = hidden.double() + delta.double()
    expected = total / (total.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert torch.allclose(stream.double(), total, atol=1e-6)
    assert result.dtype == dtype
    assert (result.double() - expected).abs().max() < TOLERANCE[dtype] * expected.abs().max()


def test_rms_norm_without_a_delta_leaves_the_stream_alone() -> None:
    hidden = random(3, 64)
    before = hidden.clone()
    ops.rms_norm(hidden, None, torch.ones(64), 1e-5, torch.float32)
    assert torch.equal(hidden, before)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_swiglu_gates(dtype: torch.dtype) -> None:
    gate_up = random(33, 2 * 96).to(dtype)
    gate, up = gate_up.double().chunk(2, -1)
    expected = gate / (1 + torch.exp(-gate)) * up
    result = ops.swiglu(gate_up)
    assert result.dtype == dtype
    assert (result.double() - expected).abs().max() < TOLERANCE[dtype] * expected.abs().max()


def test_embed_picks_rows_as_float32() -> None:
    table = random(10, 8).bfloat16()
    assert torch.equal(ops.embed(torch.tensor([3, 3, 0]), table), table[[3, 3, 0]].float())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [96, 1537])
def test_a_row_has_the_same_bits_in_any_company_and_on_any_threads(dtype: torch.dtype, width: int) -> None:
    """torch cuts pointwise work at any element, and the rest of a cut may take another routine: widths that are odd."""
    x = random(300, 2 * width).to(dtype)

    def both(rows: torch.Tensor) -> torch.Tensor:
        normed = ops.rms_norm(rows[:, :width].float().clone(), rows[:, width:], torch.ones(width), 1e-5, dtype)
        return torch.cat((ops.swiglu(rows), normed), -1)

    with using_threads(1):
        alone = torch.cat([both(row[None]) for row in x])
    for threads in (1, 2, 3, 5, 7):
        with using_threads(threads):
            for num_rows in (2, 17, 101, 300):
                assert torch.equal(both(x[-num_rows:]), alone[-num_rows:])
