"""How keys and values lie in memory: the contract between the block manager, which only counts blocks, and kernels."""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kernels.errors import BadKernelInput

# Tokens a block. Prefix sharing, eviction and copying all happen in this unit.
BLOCK_SIZE = 16

# Attention over a long context is computed in parts of this many tokens, counted from position 0, and the parts are
# merged in order. Fixed places are what makes a row's numbers the same in prefill and decode, chunked or not.
SPLIT_SIZE = 256
BLOCKS_PER_SPLIT = SPLIT_SIZE // BLOCK_SIZE

CACHE_LINE_BYTES = 64

# Names this arrangement of numbers in the keys of cached blocks.
LAYOUT = f"paged/1 block={BLOCK_SIZE} split={SPLIT_SIZE}"


@dataclass(frozen=True, slots=True)
class RowSpan:
    """Consecutive tokens of one sequence that are computed in one step.

    `start` is the position of the first, `block_table` the sequence's blocks from position 0 on, long enough for the
    last of the `num_rows`.
    """

    start: int
    num_rows: int
    block_table: Sequence[int]


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token stores: `num_layers` times keys and values of `num_kv_heads` heads of `head_dim` numbers."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def block_bytes(self) -> int:
        """Bytes of one block with all its layers."""
        return 2 * self.num_layers * self.num_kv_heads * BLOCK_SIZE * self.head_dim * self.dtype.itemsize


class PagedCache:
    """The memory of all blocks.

    `storage` is `[num_blocks + 1, num_layers, 2, num_kv_heads, BLOCK_SIZE, head_dim]` (2: keys, values): a block is one
    contiguous piece, so that copying or moving it is one memcpy. The extra last block is never written: it pads tables.
    """

    def __init__(self, shape: KVShape, num_blocks: int, device: torch.device) -> None:
        if num_blocks < 1:
            raise BadKernelInput(f"A cache needs at least one block, not {num_blocks}.")
        self.shape = shape
        self.num_blocks = num_blocks
        size = (num_blocks + 1, shape.num_layers, 2, shape.num_kv_heads, BLOCK_SIZE, shape.head_dim)
        # Zeroed: masked places have weight 0, and 0 times what was left in memory would be NaN if that is not finite.
        self.storage = _zeros(size, shape.dtype, device)

    @property
    def null_block(self) -> int:
        """The block of zeros."""
        return self.num_blocks

    @property
    def layout(self) -> str:
        """Names the bytes of a block: arrangement, sizes and dtype."""
        shape = self.shape
        sizes = f"layers={shape.num_layers} kv_heads={shape.num_kv_heads} head_dim={shape.head_dim}"
        return f"{LAYOUT} {sizes} {shape.dtype} {sys.byteorder}"

    def copy_block(self, source: int, destination: int) -> None:
        """Copy all layers of one block onto another."""
        self.storage[destination].copy_(self.storage[source])

    def zero_blocks(self, blocks: Iterable[int]) -> None:
        """Clear blocks that may hold numbers that are not finite."""
        for block in blocks:
            self.storage[block].zero_()

    def read_block(self, block: int) -> bytes:
        """The bytes of one block with all its layers."""
        return self.storage[block].cpu().view(torch.uint8).numpy().tobytes()

    def write_block(self, block: int, content: bytes | memoryview) -> None:
        """Replace one block by what `read_block` gave, here or elsewhere."""
        if len(content) != self.shape.block_bytes:
            raise BadKernelInput(f"A block has {self.shape.block_bytes} bytes, not {len(content)}.")
        numbers = torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())
        self.storage[block].copy_(numbers.view(self.shape.dtype).view(self.storage[block].shape))

    def zero_row(self, block_table: Sequence[int], position: int) -> None:
        """Clear one token of a sequence."""
        self.storage[block_table[position // BLOCK_SIZE], :, :, :, position % BLOCK_SIZE].zero_()


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros that on the CPU take memory only when they are first written; torch.zeros writes them all at once."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    num_bytes = math.prod(size) * dtype.itemsize
    memory = torch.from_numpy(np.zeros(num_bytes + CACHE_LINE_BYTES, dtype=np.uint8))
    start = -memory.data_ptr() % CACHE_LINE_BYTES
    return memory[start : start + num_bytes].view(dtype).view(size)
