"""What one step computes, as index tensors: built once a step from the sequences' spans and used by every layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kernels.cpu.rotary import RotaryTable
from kernels.paging import BLOCK_SIZE, BLOCKS_PER_SPLIT, SPLIT_SIZE, KVShape, PagedCache, RowSpan

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows grouped for the matrix products of attention.

    A tile has `size` places for rows of one sequence that all see the same number of splits; tiles with more splits
    come first. `place` `[rows]` is each row's place in the flattened tiles, `source` `[num_tiles * size]` the row in
    each place (row 0 in empty ones), `position` `[num_tiles, size]` what each place may see (all, in empty ones).
    """

    size: int
    place: Ints
    source: Ints
    position: Ints
    sequence: Ints
    num_splits: Ints

    @property
    def num_tiles(self) -> int:
        """Number of tiles."""
        return len(self.sequence)

    def num_with_split(self, split: int) -> int:
        """How many tiles, from the first on, see this split."""
        return int((self.num_splits > split).sum())


@dataclass(slots=True)
class RowPlan:
    """Index tensors of one step.

    `mask` is `[items, 1, size, SPLIT_SIZE]`, 0 or -inf; an item is a (tile, split) pair, ordered by split and then by
    tile; `splits` holds the number of items of each split.
    """

    num_rows: int
    tile_size: int
    num_tiles: int
    splits: list[int]
    place: torch.Tensor
    source: torch.Tensor
    mask: torch.Tensor
    rotary: RotaryTable
    shape: KVShape
    _write_rows: torch.Tensor
    _gather_rows: torch.Tensor
    _gather_index: torch.Tensor
    gathered: torch.Tensor

    @property
    def is_plain(self) -> bool:
        """Whether the tiles are simply the rows in their order, as in a decode step of short contexts."""
        return self.tile_size == 1 and len(self.splits) == 1

    def write_rows(self, layer: int) -> torch.Tensor:
        """Rows of `storage.view(-1, head_dim)` that this step's keys and values of a layer go to."""
        return self._write_rows + layer * 2 * self.shape.num_kv_heads * BLOCK_SIZE

    def gather_rows(self, layer: int) -> torch.Tensor:
        """Rows of `storage.view(-1, BLOCK_SIZE * head_dim)` that hold the keys, then the values, of all items."""
        return torch.add(self._gather_rows, layer * 2 * self.shape.num_kv_heads, out=self._gather_index)


def plan_rows(
    spans: Sequence[RowSpan], cache: PagedCache, rotary: RotaryTable, num_heads: int, tile_sizes: tuple[int, int]
) -> RowPlan:
    """Plan a step over these spans, in their order. `tile_sizes`: for steps of single rows, and for all others."""
    shape = cache.shape
    starts = np.array([span.start for span in spans], dtype=np.int64)
    counts = np.array([span.num_rows for span in spans], dtype=np.int64)
    sequence = np.repeat(np.arange(len(spans)), counts)
    first_rows = np.cumsum(counts) - counts
    positions = np.arange(len(sequence)) - first_rows[sequence] + starts[sequence]
    tables = _pad_tables(spans, int(positions.max()) // SPLIT_SIZE + 1, cache.null_block)
    small, large = tile_sizes
    tiles = _cut_tiles(positions, starts[sequence], sequence, small if counts.max() <= small else large)
    item_counts = [tiles.num_with_split(split) for split in range(int(tiles.num_splits.max()))]
    item_tiles = np.concatenate([np.arange(count) for count in item_counts])
    item_splits = np.repeat(np.arange(len(item_counts)), item_counts)
    blocks = tables[tiles.sequence[item_tiles][:, None], item_splits[:, None] * BLOCKS_PER_SPLIT + _SPLIT_BLOCKS]
    gather = _gather_rows(blocks, shape)
    row_blocks = tables[sequence, positions // BLOCK_SIZE]
    place, source = torch.from_numpy(tiles.place), torch.from_numpy(tiles.source)
    scale = 1.0 / float(np.sqrt(shape.head_dim))
    return RowPlan(
        num_rows=len(positions),
        tile_size=tiles.size,
        num_tiles=tiles.num_tiles,
        splits=item_counts,
        place=place,
        source=source,
        mask=_mask(tiles.position[item_tiles], item_splits, num_heads // shape.num_kv_heads, shape.dtype),
        rotary=rotary.factors(torch.from_numpy(positions), num_heads, shape.num_kv_heads, scale),
        shape=shape,
        _write_rows=_write_rows(row_blocks, positions % BLOCK_SIZE, shape),
        _gather_rows=gather,
        _gather_index=torch.empty_like(gather),
        gathered=torch.empty(len(gather), BLOCK_SIZE * shape.head_dim, dtype=shape.dtype),
    )


_SPLIT_BLOCKS = np.arange(BLOCKS_PER_SPLIT)


def _pad_tables(spans: Sequence[RowSpan], num_splits: int, null_block: int) -> Ints:
    tables = np.full((len(spans), num_splits * BLOCKS_PER_SPLIT), null_block, dtype=np.int64)
    for row, span in zip(tables, spans, strict=True):
        num_blocks = -(-(span.start + span.num_rows) // BLOCK_SIZE)
        row[:num_blocks] = span.block_table[:num_blocks]
    return tables


def _cut_tiles(positions: Ints, starts: Ints, sequence: Ints, size: int) -> Tiles:
    """Cut each span where a split begins, and the pieces into tiles of `size` places."""
    offset = positions - np.maximum(starts, positions // SPLIT_SIZE * SPLIT_SIZE)
    tile = np.cumsum(offset % size == 0) - 1
    first = np.flatnonzero(offset % size == 0)
    num_splits = positions[first] // SPLIT_SIZE + 1
    order = np.argsort(-num_splits, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    place = rank[tile] * size + offset % size
    source = np.zeros(len(order) * size, dtype=np.int64)
    source[place] = np.arange(len(place))
    position = np.full(len(order) * size, np.iinfo(np.int64).max)
    position[place] = positions
    return Tiles(size, place, source, position.reshape(-1, size), sequence[first][order], num_splits[order])


def _mask(position: Ints, item_splits: Ints, group: int, dtype: torch.dtype) -> torch.Tensor:
    keys = item_splits[:, None] * SPLIT_SIZE + np.arange(SPLIT_SIZE)
    hidden = torch.from_numpy(keys[:, None, :] > position[:, :, None])
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)
    return mask.repeat_interleave(group, dim=1)[:, None]


def _write_rows(blocks: Ints, offsets: Ints, shape: KVShape) -> torch.Tensor:
    """Order: row, keys or values, head."""
    heads = np.arange(2 * shape.num_kv_heads) * BLOCK_SIZE
    block_rows = blocks * (shape.num_layers * 2 * shape.num_kv_heads * BLOCK_SIZE)
    return torch.from_numpy(((block_rows + offsets)[:, None] + heads).reshape(-1))


def _gather_rows(blocks: Ints, shape: KVShape) -> torch.Tensor:
    """Order: keys or values, item, head, block."""
    kv = np.arange(2)[:, None, None, None] * shape.num_kv_heads
    heads = np.arange(shape.num_kv_heads)[None, None, :, None]
    block_rows = blocks[None, :, None, :] * (shape.num_layers * 2 * shape.num_kv_heads)
    return torch.from_numpy((block_rows + kv + heads).reshape(-1))
