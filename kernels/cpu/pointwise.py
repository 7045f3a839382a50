"""Normalisation and activation: few passes, each row by itself."""

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation


def rms_norm(hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Root-mean-square norm (Zhang and Sennrich, 2019) of the residual stream.

    hidden `[rows, hidden_size]` float32: `delta`, if given, is added to it in place first. Returns float32.
    """
    if delta is not None:
        hidden.add_(delta)
    return F.rms_norm(hidden, (hidden.shape[-1],), weight, eps)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` (Shazeer, 2020) for `[rows, 2 * intermediate_size]` holding gate, then up."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
