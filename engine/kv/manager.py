"""Gives sequences their blocks: what is cached already, what another one is just computing, what must be new."""

from collections.abc import Callable

import msgspec

from engine.kv.pool import BlockPool
from engine.plan import BlockCopy
from engine.sequence import Sequence
from models.kv_keys import BLOCK_SIZE, BlockKeyChain

MakeChain = Callable[[str], BlockKeyChain]


class PrefixMatch(msgspec.Struct, frozen=True):
    """What of a sequence's KV exists: `blocks` hold its first `num_tokens` tokens.

    `awaited` is the key of the next block, if a running sequence is computing it right now.
    """

    blocks: list[int]
    num_tokens: int
    awaited: bytes | None = None


class KVManager:
    """Blocks of all sequences. `make_chain` starts the key chain of a tenant; None turns the prefix cache off."""

    def __init__(self, pool: BlockPool, make_chain: MakeChain | None) -> None:
        self.pool = pool
        self._make_chain = make_chain
        # Keys of blocks that running sequences are going to fill, so that nobody computes the same prefix beside them.
        self._claims: dict[bytes, Sequence] = {}
        # Blocks with numbers that are not finite, which nobody holds. They must be cleared before anything reads them.
        self._dirty: set[int] = set()

    @property
    def is_caching(self) -> bool:
        """Whether blocks are found by their content."""
        return self._make_chain is not None

    def match(self, sequence: Sequence) -> PrefixMatch:
        """The longest cached or forkable prefix. Leaves at least one token to compute: its logits are needed."""
        cached = self._match_cached(sequence)
        leader = sequence.leader
        if leader is None or not leader.blocks:
            return cached
        num_shared = min(leader.num_computed, sequence.num_prompt, sequence.num_tokens - 1)
        if num_shared <= cached.num_tokens:
            return cached
        return PrefixMatch(blocks=leader.blocks[: _num_blocks(num_shared)], num_tokens=num_shared)

    def is_claimed(self, key: bytes) -> bool:
        """Whether a running sequence is computing the block with this key."""
        return key in self._claims

    def num_taken(self, sequence: Sequence, match: PrefixMatch) -> int:
        """How many available blocks the sequence takes to hold all its tokens and one more, with this match."""
        in_use = sum(self.pool.is_used(block) for block in match.blocks)
        copied = bool(match.num_tokens % BLOCK_SIZE)
        return _num_blocks(sequence.num_tokens + 1) - in_use + copied

    def begin(self, sequence: Sequence, match: PrefixMatch) -> None:
        """Take the matched blocks, and claim what the sequence is going to compute."""
        for block in match.blocks:
            self.pool.share(block)
        sequence.blocks = list(match.blocks)
        sequence.num_computed = match.num_tokens
        sequence.num_named = match.num_tokens // BLOCK_SIZE
        for key in self._keys(sequence)[sequence.num_named :]:
            self._claims.setdefault(key, sequence)

    def has_place(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether `grow` would change nothing: most often so, hence asked first."""
        blocks = sequence.blocks
        place = sequence.num_computed // BLOCK_SIZE
        return num_tokens <= len(blocks) * BLOCK_SIZE and self.pool.is_writable(blocks[place])

    def has_room(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether `grow` would find its blocks."""
        num_copied = self._shared_tail(sequence) is not None
        num_new = max(0, _num_blocks(num_tokens) - len(sequence.blocks))
        return num_new + num_copied <= self.pool.num_available

    def grow(self, sequence: Sequence, num_tokens: int) -> BlockCopy | None:
        """Give the sequence room for `num_tokens` tokens; the copy, if its next row falls into a block of others."""
        if self.has_place(sequence, num_tokens):
            return None
        copy = None
        place = self._shared_tail(sequence)
        if place is not None:
            copy = BlockCopy(source=sequence.blocks[place], destination=self.pool.allocate())
            sequence.blocks[place] = copy.destination
            self.pool.release(copy.source)
        for _ in range(_num_blocks(num_tokens) - len(sequence.blocks)):
            sequence.blocks.append(self.pool.allocate())
        return copy

    def commit(self, sequence: Sequence) -> None:
        """Name the blocks that are full now, once their rows are computed."""
        if self._make_chain is None:
            return
        num_full = sequence.num_computed // BLOCK_SIZE
        if num_full == sequence.num_named:
            return
        keys = self._keys(sequence)
        for place in range(sequence.num_named, num_full):
            self._name(sequence, place, keys[place])
        sequence.num_named = num_full

    def release(self, sequence: Sequence) -> None:
        """Take all blocks back. The end of a prefix is forgotten before its beginning, which others may share."""
        if not sequence.blocks:
            return
        for key in self._keys(sequence)[sequence.num_named :]:
            self._unclaim(sequence, key)
        for block in reversed(sequence.blocks):
            self.pool.release(block)
        sequence.blocks = []
        sequence.num_computed = sequence.num_named = 0

    def trim(self, sequence: Sequence) -> None:
        """Take back the blocks beyond the sequence's tokens, which a wrong draft had asked for."""
        while len(sequence.blocks) > _num_blocks(sequence.num_tokens):
            self.pool.release(sequence.blocks.pop())

    def discard(self, sequence: Sequence) -> None:
        """Release blocks whose content is bad. Those that nobody else holds are dirty until they are cleared."""
        for block in sequence.blocks:
            self.pool.unname(block)
        bad = list(sequence.blocks)
        self.release(sequence)
        self._dirty.update(block for block in bad if not self.pool.is_used(block))

    def take_dirty(self) -> list[int]:
        """The dirty blocks, for a plan that clears them."""
        dirty = sorted(self._dirty)
        self._dirty.clear()
        return dirty

    def mark_dirty(self, blocks: list[int]) -> None:
        """Blocks that were to be cleared, in a step that failed, and that nobody holds again."""
        self._dirty.update(blocks)

    def hold(self, key: bytes) -> int:
        """Take a reference on the block with this content, or else on a nameless one, to be overwritten as a whole."""
        block = self.pool.find(key)
        if block is not None:
            self.pool.share(block)
            return block
        block = self.pool.allocate()
        self._dirty.discard(block)
        return block

    def _name(self, sequence: Sequence, place: int, key: bytes) -> None:
        block = sequence.blocks[place]
        if self.pool.is_writable(block):
            self.pool.name(block, key)
        self._unclaim(sequence, key)

    def _unclaim(self, sequence: Sequence, key: bytes) -> None:
        if self._claims.get(key) is sequence:
            del self._claims[key]

    def _match_cached(self, sequence: Sequence) -> PrefixMatch:
        blocks: list[int] = []
        for key in self._keys(sequence)[: (sequence.num_tokens - 1) // BLOCK_SIZE]:
            block = self.pool.find(key)
            if block is None:
                awaited = key if self.is_claimed(key) else None
                return PrefixMatch(blocks=blocks, num_tokens=len(blocks) * BLOCK_SIZE, awaited=awaited)
            blocks.append(block)
        return PrefixMatch(blocks=blocks, num_tokens=len(blocks) * BLOCK_SIZE)

    def _keys(self, sequence: Sequence) -> list[bytes]:
        """Keys of all full blocks of the sequence's tokens so far."""
        if self._make_chain is None:
            return []
        if sequence.keys is None:
            sequence.keys = self._make_chain(sequence.request.tenant)
        chain = sequence.keys
        num_hashed = len(chain.keys) * BLOCK_SIZE
        if sequence.num_tokens - num_hashed >= BLOCK_SIZE:
            chain.append(sequence.token_ids[num_hashed : sequence.num_tokens // BLOCK_SIZE * BLOCK_SIZE])
        return chain.keys

    def _shared_tail(self, sequence: Sequence) -> int | None:
        """The place of the block that the next row falls into, if others read it too."""
        place = sequence.num_computed // BLOCK_SIZE
        if place >= len(sequence.blocks) or self.pool.is_writable(sequence.blocks[place]):
            return None
        return place


def _num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)
