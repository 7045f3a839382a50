"""The block pool under any sequence of calls, against a model of sets."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from engine.kv.pool import BlockPool
from schemas.errors import EngineFault

NUM_BLOCKS = 6
KEYS = st.sampled_from([bytes([number]) for number in range(8)])


class PoolMachine(RuleBasedStateMachine):
    """Holds references one by one, as sequences do."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.references: dict[int, int] = {}
        self.names: dict[int, bytes] = {}

    @precondition(lambda self: self.pool.num_available > 0)
    @rule(target=held)
    def allocate(self) -> int:
        block = self.pool.allocate()
        assert not self.references.get(block)
        self.references[block] = 1
        self.names.pop(block, None)
        return block

    @rule(target=held, block=held)
    def share(self, block: int) -> int:
        self.pool.share(block)
        self.references[block] += 1
        return block

    @rule(target=held, key=KEYS)
    def find_and_share(self, key: bytes) -> object:
        block = self.pool.find(key)
        if block is None:
            assert key not in self.names.values()
            return self.allocate() if self.pool.num_available else self.refuse()
        assert self.names[block] == key
        self.pool.share(block)
        self.references[block] = self.references.get(block, 0) + 1
        return block

    def refuse(self) -> object:
        with pytest.raises(EngineFault, match="All KV blocks are in use"):
            self.pool.allocate()
        block = next(iter(self.references))
        self.pool.share(block)
        self.references[block] += 1
        return block

    @rule(block=consumes(held))
    def release(self, block: int) -> None:
        self.pool.release(block)
        self.references[block] -= 1

    @rule(block=held, key=KEYS)
    def name(self, block: int, key: bytes) -> None:
        if block in self.names:
            with pytest.raises(EngineFault, match="not a used block without a key"):
                self.pool.name(block, key)
            return
        self.pool.name(block, key)
        if key not in self.names.values():
            self.names[block] = key
        assert self.pool.find(key) is not None

    @rule(block=held)
    def unname(self, block: int) -> None:
        self.pool.unname(block)
        self.names.pop(block, None)

    @invariant()
    def counts_add_up(self) -> None:
        counts = self.pool.counts
        used = {block for block, count in self.references.items() if count}
        cached = set(self.names) - used
        assert counts.free + counts.cached + counts.used == counts.total == NUM_BLOCKS
        assert (counts.used, counts.cached) == (len(used), len(cached))
        assert self.pool.num_available == NUM_BLOCKS - len(used)
        for block, count in self.references.items():
            assert self.pool.is_used(block) == (count > 0)
            assert self.pool.is_writable(block) == (count == 1 and block not in self.names)


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolHistories = PoolMachine.TestCase


def named(pool: BlockPool, *keys: bytes) -> list[int]:
    blocks = [pool.allocate() for _ in keys]
    for block, key in zip(blocks, keys, strict=True):
        pool.name(block, key)
    return blocks


def test_the_block_that_was_released_first_is_forgotten_first() -> None:
    pool = BlockPool(3)
    blocks = named(pool, b"a", b"b", b"c")
    for place in (1, 0, 2):
        pool.release(blocks[place])
    pool.share(blocks[1])
    pool.release(blocks[1])
    assert [pool.allocate() for _ in range(3)] == [blocks[0], blocks[2], blocks[1]]
    assert [pool.find(key) for key in (b"a", b"b", b"c")] == [None] * 3


def test_free_blocks_go_before_cached_ones() -> None:
    pool = BlockPool(3)
    (block,) = named(pool, b"a")
    pool.release(block)
    pool.allocate()
    pool.allocate()
    assert pool.find(b"a") == block


def test_a_double_free_and_sharing_of_a_free_block_are_faults() -> None:
    pool = BlockPool(2)
    block = pool.allocate()
    pool.release(block)
    with pytest.raises(EngineFault, match="released more often"):
        pool.release(block)
    with pytest.raises(EngineFault, match="cannot be shared"):
        pool.share(block)
    with pytest.raises(EngineFault, match="not used"):
        pool.unname(block)
