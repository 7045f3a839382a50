"""Only the contiguous prefix of what is done is ever committed, in whatever order it gets done."""

from collections.abc import Sized

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from runtime.ledger import Holes, Ledger


def test_nothing_delivered_leaves_the_offset_where_it_was() -> None:
    ledger = Ledger(7)
    assert (ledger.committable, ledger.next_offset, ledger.num_open) == (7, 7, 0)


def test_a_slow_record_holds_back_what_was_done_after_it() -> None:
    ledger = Ledger(0)
    for offset in range(5):
        ledger.open(offset)
    for offset in (0, 1, 3, 4):
        ledger.close(offset)
    assert (ledger.committable, ledger.num_open) == (2, 1)
    ledger.close(2)
    assert ledger.committable == 5


def test_a_record_that_was_delivered_before_is_told() -> None:
    ledger = Ledger(3)
    assert not ledger.open(2)
    assert ledger.open(3)
    assert not ledger.open(3)
    ledger.close(3)
    assert not ledger.open(3)
    assert ledger.committable == 4


def test_offsets_that_hold_no_record_count_as_done() -> None:
    ledger = Ledger(0)
    ledger.open(0)
    ledger.open(5)
    ledger.close(0)
    assert ledger.committable == 5
    ledger.close(5)
    ledger.advance(9)
    assert ledger.committable == ledger.next_offset == 9
    ledger.advance(2)
    assert ledger.next_offset == 9


def test_closing_twice_is_harmless() -> None:
    ledger = Ledger(0)
    ledger.open(0)
    ledger.close(0)
    ledger.close(0)
    assert (ledger.committable, ledger.num_open) == (1, 0)


def test_what_would_be_committed_changes_nothing() -> None:
    ledger = Ledger(0)
    for offset in range(4):
        ledger.open(offset)
    ledger.close(1)
    assert ledger.would_commit({0}) == 2
    assert ledger.would_commit({0, 2, 3}) == 4
    assert ledger.would_commit({3}) == 0
    assert (ledger.committable, ledger.num_open) == (0, 3)


def test_nothing_is_kept_of_what_is_done_however_long_one_record_before_it_stays_open() -> None:
    """A request may wait for object storage for hours: neither memory nor a transaction's time may grow with that."""
    ledger = Ledger(0)
    ledger.open(0)
    for offset in range(1, 10_000):
        ledger.open(offset)
        ledger.close(offset)
    ledger.open(10_000)
    assert sum(len(kept) for kept in vars(ledger).values() if isinstance(kept, Sized)) <= 4
    assert (ledger.committable, ledger.holes()) == (0, Holes((0,), 10_000))


class LedgerModel(RuleBasedStateMachine):
    """Against a list of what was delivered and a set of what is done."""

    def __init__(self) -> None:
        super().__init__()
        self.base = 100
        self.ledger = Ledger(self.base)
        self.delivered: list[int] = []
        self.done: set[int] = set()
        self.committed = self.base
        self.next = self.base

    @rule(gap=st.integers(0, 3))
    def deliver(self, gap: int) -> None:
        offset = self.next + gap
        assert self.ledger.open(offset)
        self.delivered.append(offset)
        self.next = offset + 1

    @precondition(lambda self: self.delivered)
    @rule(index=st.integers(0, 30))
    def deliver_again(self, index: int) -> None:
        assert not self.ledger.open(self.delivered[index % len(self.delivered)])

    @precondition(lambda self: self.delivered)
    @rule(index=st.integers(0, 30))
    def close(self, index: int) -> None:
        offset = self.delivered[index % len(self.delivered)]
        self.ledger.close(offset)
        self.done.add(offset)

    @rule(distance=st.integers(0, 3))
    def advance(self, distance: int) -> None:
        self.next += distance
        self.ledger.advance(self.next)

    @rule(closing=st.sets(st.integers(100, 130)))
    def would_commit(self, closing: set[int]) -> None:
        assert self.ledger.would_commit(closing) == self.expected(self.done | closing)

    def expected(self, done: set[int]) -> int:
        return next((offset for offset in self.delivered if offset not in done), self.next)

    @invariant()
    def all_below_the_committable_offset_is_done_and_it_never_goes_back(self) -> None:
        committable = self.ledger.committable
        assert committable == self.expected(self.done)
        assert committable >= self.committed
        self.committed = committable

    @invariant()
    def what_is_open_was_delivered_and_is_not_done(self) -> None:
        assert self.ledger.num_open == len(set(self.delivered) - self.done)
        assert self.ledger.next_offset == self.next


TestLedgerModel = LedgerModel.TestCase


@given(order=st.permutations(range(8)))
def test_whatever_the_order_everything_is_committed_in_the_end(order: list[int]) -> None:
    ledger = Ledger(0)
    for offset in range(8):
        ledger.open(offset)
    for offset in order:
        ledger.close(offset)
    assert ledger.committable == 8
