"""Normalisation and activation: few passes, each number by itself.

torch computes a pointwise operation with vectors and what is left over, at the end of each thread's share, one number
at a time; for some operations, silu among them, the two differ in the last bit, so that a number would depend on where
it stands and on the threads. (Its exp, log, sqrt, softmax and sums were tried and do not.)
"""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

# torch takes two vectors of 64 bytes at once: 64 numbers in bfloat16, 32 in float32. Whole ones leave nothing over.
VECTOR_NUMBERS = 64
# torch shares work of 32,768 numbers and more between threads, at any place.
SLICE_NUMBERS = 32_768 - VECTOR_NUMBERS


def rms_norm(hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm (Zhang and Sennrich, 2019) of the residual stream.

    hidden `[rows, hidden_size]` float32: `delta`, if given, is added to it in place first. Returns float32.
    """
    if delta is not None:
        hidden.add_(delta)
    # torch's own rms_norm takes nine times as long for 512 rows: it squares by a general power.
    scale = (hidden * hidden).mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (hidden * scale).mul_(weight)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` (Shazeer, 2020) for `[rows, 2 * intermediate_size]` holding gate, then up."""
    gate, up = gate_up.chunk(2, dim=-1)
    return _silu(gate).mul_(up)


def _silu(x: torch.Tensor) -> torch.Tensor:
    """silu of each number, in whole vectors and by one thread."""
    numbers = x.reshape(-1)
    size = len(numbers)
    if size % VECTOR_NUMBERS:
        numbers = F.pad(numbers, (0, -size % VECTOR_NUMBERS))
    result = torch.empty_like(numbers)
    for start in range(0, size, SLICE_NUMBERS):
        end = start + SLICE_NUMBERS
        torch.ops.aten.silu.out(numbers[start:end], out=result[start:end])
    return result[:size].view(x.shape)
