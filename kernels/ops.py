"""The one door to the device: CPU tensors go to the CPU path, CUDA tensors to Triton, anything else raises.

Callers never ask which device they are on. What the functions share: rows are tokens, whatever sequence they belong to;
each row's result depends on that row and its context alone, bit by bit, on one kind of processor.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

import kernels.cpu.attention as cpu_attention
import kernels.cpu.features as cpu_features
import kernels.cpu.linear as cpu_linear
import kernels.cpu.pointwise as cpu_pointwise
import kernels.cpu.rows as cpu_rows
import kernels.cpu.sampling as cpu_sampling
import kernels.cpu.store as cpu_store
from kernels.cpu.linear import PackedLinear
from kernels.cpu.rotary import RotaryTable
from kernels.cpu.rows import RowPlan
from kernels.cpu.threads import num_threads
from kernels.errors import KernelUnavailable
from kernels.paging import PagedCache, RowSpan
from kernels.sampling import SampledRows, SamplingRows


def _require_cpu(tensor: torch.Tensor, op: str) -> None:
    if tensor.is_cuda:
        raise KernelUnavailable(
            f"{op} has no Triton kernel yet: GPU kernels come with a later version. Load the model on the CPU."
        )
    if tensor.device.type != "cpu":
        raise KernelUnavailable(f"{op} runs on CPU tensors, not on {tensor.device.type!r}.")


def numerics(tensor: torch.Tensor) -> str:
    """Names the kind of device that a tensor is on: results are the same bits where this is the same."""
    _require_cpu(tensor, "numerics")
    return cpu_features.numerics()


def pack_linear(weight: torch.Tensor) -> PackedLinear:
    """Prepare weights `[out_features, in_features]` for `linear`; the original may be freed."""
    _require_cpu(weight, "pack_linear")
    return cpu_linear.pack_linear(weight)


def linear(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
    """`x @ weight.T`: `[rows, in_features]` to `[rows, out_features]`, in the dtype of both."""
    _require_cpu(x, "linear")
    return cpu_linear.linear(x, weight)


def embed(token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows of `table` `[vocab_size, hidden_size]` for int64 `[rows]`: the residual stream, float32."""
    _require_cpu(table, "embed")
    return F.embedding(token_ids, table).float()


def rms_norm(
    hidden: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """Add `delta` to the residual stream in place, and return the stream's norm in `dtype`.

    hidden: float32 `[rows, hidden_size]`, changed; delta: the same shape, any float dtype; weight: float32
    `[hidden_size]`.
    """
    _require_cpu(hidden, "rms_norm")
    return cpu_pointwise.rms_norm(hidden, delta, weight, eps).to(dtype)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` for `[rows, 2 * intermediate_size]`, gate first."""
    _require_cpu(gate_up, "swiglu")
    return cpu_pointwise.swiglu(gate_up)


def rotary_table(num_positions: int, head_dim: int, theta: float) -> RotaryTable:
    """Cosines and sines of all positions."""
    return RotaryTable.build(num_positions, head_dim, theta)


def plan_rows(spans: Sequence[RowSpan], cache: PagedCache, rotary: RotaryTable, num_heads: int) -> RowPlan:
    """Index tensors of one step, used by all its layers."""
    _require_cpu(cache.storage, "plan_rows")
    shape = cache.shape
    sizes = cpu_attention.tile_sizes(num_heads // shape.num_kv_heads, shape.head_dim, shape.dtype, num_threads())
    return cpu_rows.plan_rows(spans, cache, rotary, num_heads, sizes)


def rotate_and_store(qkv: torch.Tensor, plan: RowPlan, cache: PagedCache, layer: int) -> torch.Tensor:
    """Rotate queries and keys, write keys and values to the cache; returns scaled queries `[rows, heads, head_dim]`."""
    _require_cpu(qkv, "rotate_and_store")
    return cpu_store.rotate_and_store(qkv, plan, cache, layer)


def attend(queries: torch.Tensor, plan: RowPlan, cache: PagedCache, layer: int) -> torch.Tensor:
    """Causal attention of each row over its own context in the cache: `[rows, heads * head_dim]`."""
    _require_cpu(queries, "attend")
    return cpu_attention.attend(queries, plan, cache, layer)


def sample(logits: torch.Tensor, rows: SamplingRows) -> SampledRows:
    """Choose one token for each row of float32 logits `[rows, vocab_size]`."""
    _require_cpu(logits, "sample")
    return cpu_sampling.sample(logits, rows)
