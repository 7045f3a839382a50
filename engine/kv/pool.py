"""Counts blocks: which are free, used or merely remembered. Knows neither tensors nor sequences.

Not modified here: the memory of a block. Always true between calls: free + cached + used = total, a free block has
neither references nor key, a cached block has a key and no reference, a used block has at least one reference.
"""

from collections import OrderedDict

import msgspec

from schemas.errors import EngineFault


class BlockCounts(msgspec.Struct, frozen=True):
    """How the blocks of a pool are spent."""

    total: int
    free: int
    cached: int
    used: int


class BlockPool:
    """Blocks 0 to `num_blocks`, with reference counts and a prefix cache of the unreferenced ones, evicted by age."""

    def __init__(self, num_blocks: int) -> None:
        self._references = [0] * num_blocks
        self._keys: list[bytes | None] = [None] * num_blocks
        # Taken from the end: low numbers first, so that a lightly used pool touches little memory.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._by_key: dict[bytes, int] = {}

    @property
    def counts(self) -> BlockCounts:
        """Free, cached and used blocks."""
        total, free, cached = len(self._references), len(self._free), len(self._cached)
        return BlockCounts(total=total, free=free, cached=cached, used=total - free - cached)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can give: free ones, and cached ones by forgetting them."""
        return len(self._free) + len(self._cached)

    def allocate(self) -> int:
        """A block with one reference and no key; EngineFault if none is available."""
        if self._free:
            block = self._free.pop()
        elif self._cached:
            block, _ = self._cached.popitem(last=False)
            self._forget(block)
        else:
            raise EngineFault("All KV blocks are in use: the scheduler must ask `num_available` first.")
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Take one more reference on a used or cached block."""
        if self._references[block] == 0:
            if block not in self._cached:
                raise EngineFault(f"KV block {block} is free and cannot be shared.")
            del self._cached[block]
        self._references[block] += 1

    def release(self, block: int) -> None:
        """Give one reference back. The last one makes a block with a key cached, and any other free."""
        if self._references[block] == 0:
            raise EngineFault(f"KV block {block} was released more often than it was taken.")
        self._references[block] -= 1
        if self._references[block]:
            return
        if self._keys[block] is None:
            self._free.append(block)
        else:
            self._cached[block] = None

    def name(self, block: int, key: bytes) -> None:
        """Let a used block be found by its content. If another block has this content already, that one stays."""
        if self._references[block] == 0 or self._keys[block] is not None:
            raise EngineFault(f"KV block {block} is not a used block without a key.")
        if key not in self._by_key:
            self._by_key[key] = block
            self._keys[block] = key

    def unname(self, block: int) -> None:
        """Let a used block be found no more: its content is not to be trusted."""
        if self._references[block] == 0:
            raise EngineFault(f"KV block {block} is not used: nobody can know that its content is bad.")
        self._forget(block)

    def find(self, key: bytes) -> int | None:
        """The block with this content."""
        return self._by_key.get(key)

    def is_used(self, block: int) -> bool:
        """Whether a sequence holds it."""
        return self._references[block] > 0

    def is_writable(self, block: int) -> bool:
        """Whether its one holder may change it: a shared or named block is read by others, now or later."""
        return self._references[block] == 1 and self._keys[block] is None

    def _forget(self, block: int) -> None:
        key = self._keys[block]
        if key is not None:
            del self._by_key[key]
            self._keys[block] = None
