"""Matrix products whose rows do not depend on how many rows there are.

oneDNN and MKL choose another kernel, and so another order of summation, when the number of rows or threads changes.
Which changes matter differs from processor to processor, so it is not assumed but tried: once for each shape, when the
weights are packed; and only numbers of rows that were tried are ever computed. Batch invariance as a goal: He et al.,
"Defeating Nondeterminism in LLM Inference", 2025.
"""

import bisect
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own abbreviation

from kernels.cpu.threads import num_threads, using_threads
from kernels.errors import BadKernelInput

RowFunction = Callable[[torch.Tensor], torch.Tensor]

# Other numbers of rows are padded to the next of these, or cut into several.
ROW_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# A product takes as long as some 10 rows more than it has: up to so many rows of padding are cheaper than a second one.
MAX_PADDING = 16
# What is left if no two sizes agree.
ONLY_SIZE = 32
# Rows compared for small sizes, so that a rare difference in a last bit shows.
COMPARED_ROWS = 96
# A vocabulary's head: each row gives many numbers to compare, and few rows, the sampled ones, ever pass it.
WIDE_FEATURES = 16_384
WIDE_COMPARED_ROWS = 24
WIDE_LARGEST_SIZE = 64

_trying = threading.Lock()


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """Weights `[out_features, in_features]`, in oneDNN's own order if `packed`, and the numbers of rows to use."""

    weight: torch.Tensor
    out_features: int
    in_features: int
    dtype: torch.dtype
    packed: bool
    row_sizes: tuple[int, ...]


def pack_linear(weight: torch.Tensor) -> PackedLinear:
    """Pack weights `[out_features, in_features]`; the first time for a shape this tries it out (50 to 300 ms)."""
    out_features, in_features = weight.shape
    packed = _can_pack(weight.dtype)
    return PackedLinear(
        weight=_pack(weight) if packed else weight.contiguous(),
        out_features=out_features,
        in_features=in_features,
        dtype=weight.dtype,
        packed=packed,
        row_sizes=invariant_sizes(out_features, in_features, weight.dtype, num_threads()),
    )


def linear(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
    """`x @ weight.T` for x `[rows, in_features]` of the weights' dtype, in that dtype."""
    if x.dim() != 2 or x.shape[1] != weight.in_features or x.dtype != weight.dtype:
        raise BadKernelInput(
            f"linear wants [rows, {weight.in_features}] of {weight.dtype}, not {list(x.shape)} of {x.dtype}."
        )
    parts = row_parts(len(x), weight.row_sizes)
    if len(parts) == 1:
        return _padded(x, weight)
    return torch.cat([_padded(part, weight) for part in torch.split(x, parts)])


@functools.lru_cache(maxsize=4096)
def row_parts(num_rows: int, sizes: tuple[int, ...]) -> list[int]:
    """Cut rows into parts that are sizes, except for the last, which is padded to one."""
    parts: list[int] = []
    while True:
        place = bisect.bisect_left(sizes, num_rows)
        if place < len(sizes) and (place == 0 or sizes[place] - num_rows <= MAX_PADDING):
            return [*parts, num_rows]
        parts.append(sizes[place - 1])
        num_rows -= parts[-1]


def _padded(x: torch.Tensor, weight: PackedLinear) -> torch.Tensor:
    num_rows = len(x)
    size = weight.row_sizes[bisect.bisect_left(weight.row_sizes, num_rows)]
    if size == num_rows:
        return _product(x, weight=weight.weight, packed=weight.packed)
    padded = F.pad(x, (0, 0, 0, size - num_rows))
    return _product(padded, weight=weight.weight, packed=weight.packed)[:num_rows]


def _product(x: torch.Tensor, *, weight: torch.Tensor, packed: bool) -> torch.Tensor:
    if packed:
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")  # type: ignore[no-any-return]  # torch.ops is untyped
    return F.linear(x, weight)


def _can_pack(dtype: torch.dtype) -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return False
    return dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _pack(weight: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)  # type: ignore[no-any-return]  # torch.ops is untyped


def invariant_sizes(out_features: int, in_features: int, dtype: torch.dtype, threads: int) -> tuple[int, ...]:
    """The numbers of rows, smallest first, that all give a row the same bits here, on one thread as on `threads`."""
    with _trying:  # layers are packed by several threads, and all have the same shapes
        return _try_sizes(out_features, in_features, dtype, threads)


@functools.cache
def _try_sizes(out_features: int, in_features: int, dtype: torch.dtype, threads: int) -> tuple[int, ...]:
    is_wide = out_features > WIDE_FEATURES
    sizes = tuple(size for size in ROW_SIZES if not is_wide or size <= WIDE_LARGEST_SIZE)
    compared_rows = WIDE_COMPARED_ROWS if is_wide else COMPARED_ROWS
    generator = torch.Generator().manual_seed(0)
    # Random numbers for a whole vocabulary take a second; repeated rows show a difference just as well.
    tile = torch.randn(min(out_features, 1024), in_features, generator=generator)
    weight = tile.repeat(-(-out_features // len(tile)), 1)[:out_features].to(dtype)
    packed = _can_pack(dtype)
    product = functools.partial(_product, weight=_pack(weight) if packed else weight, packed=packed)
    x = torch.randn(sizes[-1], in_features, generator=generator).to(dtype)
    with using_threads(1):
        reference = product(x)
    agreeing = set(sizes)
    for count in sorted({1, threads}):
        with using_threads(count):
            agreeing &= {size for size in agreeing if _agrees(product, x, reference, size, compared_rows)}
    return tuple(sorted(agreeing)) if len(agreeing) > 1 else (ONLY_SIZE,)


def _agrees(product: RowFunction, x: torch.Tensor, reference: torch.Tensor, size: int, compared_rows: int) -> bool:
    last = min(len(x), max(size, compared_rows)) - size
    return all(
        torch.equal(product(x[start : start + size]), reference[start : start + size])
        for start in range(0, last + 1, size)
    )
