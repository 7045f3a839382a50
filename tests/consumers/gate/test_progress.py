"""Nothing that was done is decided again by the next owner, however much of it stands behind an open record."""

from hypothesis import given
from hypothesis import strategies as st

from consumers.gate.progress import MAX_METADATA_BYTES, decode_progress, encode_progress
from runtime.ledger import Holes, Ledger


def delivered(*offsets: int, base: int = 0, holes: Holes | None = None) -> Ledger:
    ledger = Ledger(base, holes)
    for offset in offsets:
        ledger.open(offset)
    return ledger


def test_where_all_is_done_in_order_nothing_is_written() -> None:
    ledger = delivered(5, 6, 7, base=5)
    ledger.close(5)
    assert encode_progress(ledger.holes(), ledger.committable) == ""


def test_what_is_closed_by_the_same_transaction_counts_as_done() -> None:
    ledger = delivered(0, 1, 2)
    assert ledger.holes({1}) == Holes((0,), 2)
    assert ledger.holes() == Holes((), 0)


def test_what_an_earlier_owner_has_done_stays_known_until_it_was_delivered_again() -> None:
    ledger = delivered(0, holes=Holes((0, 7), 9))
    assert ledger.holes() == Holes((0, 7), 9)
    ledger.close(0)
    assert [offset for offset in range(1, 12) if ledger.open(offset)] == [7, 9, 10, 11]


@given(
    gaps=st.lists(st.integers(1, 3), max_size=40),
    closed=st.sets(st.integers(0, 39)),
    redelivered=st.integers(0, 40),
    base=st.sampled_from([0, 10**12]),
)
def test_the_next_owner_is_given_exactly_what_is_open(
    gaps: list[int], closed: set[int], redelivered: int, base: int
) -> None:
    offsets: list[int] = []
    ledger = Ledger(base)
    for gap in gaps:
        offsets.append((offsets[-1] if offsets else base - 1) + gap)
        ledger.open(offsets[-1])
    done = {offset for place, offset in enumerate(offsets) if place in closed}
    for offset in done:
        ledger.close(offset)
    committed = ledger.committable
    metadata = encode_progress(ledger.holes(), committed)
    # The next owner is itself followed, in the middle of reading again, by another.
    for num_read in (redelivered, len(offsets)):
        known = decode_progress(metadata, committed) if metadata else None
        following = Ledger(committed, known)
        again = [offset for offset in offsets[:num_read] if offset >= committed and following.open(offset)]
        assert again == [offset for offset in offsets[:num_read] if offset not in done]
        committed, metadata = following.committable, encode_progress(following.holes(), following.committable)


@given(offsets=st.sets(st.integers(0, 10**6), max_size=1_500).map(sorted))
def test_what_does_not_fit_counts_as_open_and_never_as_done(offsets: list[int]) -> None:
    holes = Holes(tuple(offsets), 10**6 + 1)
    metadata = encode_progress(holes, 0)
    assert len(metadata) <= MAX_METADATA_BYTES
    known = decode_progress(metadata, 0)
    assert known is not None
    assert set(known.offsets) <= set(offsets)
    assert all(offset in known.offsets or offset >= known.until for offset in offsets)


@given(metadata=st.text() | st.sampled_from(["", "7", '{"open": [1]}', '{"open": "x", "until": 1}', "\ud800"]))
def test_the_metadata_of_others_is_no_knowledge(metadata: str) -> None:
    assert decode_progress(metadata, 3) is None
