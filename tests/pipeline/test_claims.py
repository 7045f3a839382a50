from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.claims import Claim, Claims, Partition

P0 = ("turns", 0)


class Record(NamedTuple):
    offset: int


def records(*offsets: int) -> dict[tuple[str, int], list[Record]]:
    return {P0: [Record(offset) for offset in offsets]}


def claim_of(claims: Claims) -> Claim:
    (claim,) = claims.current()
    return claim


def test_nothing_is_committed_before_all_below_it_is_done() -> None:
    claims = Claims()
    claims.renew(P0, 5)
    claims.take(records(5, 6, 7))
    claim = claim_of(claims)
    claim.close([6, 7])
    assert claim.to_commit() is None
    assert claim.oldest_open == 5
    claim.close([5])
    assert claim.to_commit() == 8
    assert claim.oldest_open is None


def test_an_offset_is_committed_once() -> None:
    claims = Claims()
    claims.renew(P0, 0)
    claims.take(records(0))
    claim_of(claims).close([0])
    claim_of(claims).committed(1)
    assert claim_of(claims).to_commit() is None


def test_markers_and_aborted_records_are_passed_once_the_client_is_behind_them() -> None:
    claims = Claims()
    claims.renew(P0, 0)
    claims.take(records(0, 4))
    claims.advance({P0: 9})
    claim = claim_of(claims)
    claim.close([4])
    assert claim.to_commit() is None
    claim.close([0])
    assert claim.to_commit() == 9


def test_a_partition_of_markers_alone_is_committed_too() -> None:
    claims = Claims()
    claims.renew(P0, 0)
    claims.advance({P0: 3})
    assert claim_of(claims).to_commit() == 3


def test_records_of_a_partition_that_is_not_claimed_are_left_out() -> None:
    claims = Claims()
    assert claims.take(records(3, 4)) == {}
    claims.renew(P0, 3)
    claims.give_up([P0])
    assert claims.take(records(3, 4)) == {}


def test_a_claim_is_void_when_its_partition_is_sought_again_or_given_up() -> None:
    claims = Claims()
    first = claims.renew(P0, 0)
    second = claims.renew(P0, 0)
    assert (first.is_void, second.is_void) == (True, False)
    claims.give_up([Partition(*P0)])
    assert second.is_void
    assert claims.current() == []


def test_what_is_done_under_a_void_claim_is_not_committed_under_the_next() -> None:
    claims = Claims()
    old = claims.renew(P0, 0)
    claims.take(records(0, 1))
    new = claims.renew(P0, 0)
    old.close([0, 1])
    claims.take(records(0, 1))
    assert new.to_commit() is None


def test_a_log_that_was_cut_is_read_from_where_it_is_now() -> None:
    claims = Claims()
    old = claims.renew(P0, 100)
    claims.take(records(100, 101))
    taken = claims.take(records(0, 1))[P0]
    assert old.is_void
    assert [item.claim.is_void for item in taken] == [False, False]
    assert claim_of(claims).oldest_open == 0


@settings(max_examples=200)
@given(st.data())
def test_whatever_happens_no_open_record_is_ever_committed_past(data: st.DataObject) -> None:
    """Records come with gaps, are done in any order, and the partition is sought back at any moment."""
    claims = Claims()
    committed = position = data.draw(st.integers(0, 3))
    claims.renew(P0, position)
    open_: set[int] = set()
    for _ in range(data.draw(st.integers(1, 25))):
        claim = claim_of(claims)
        match data.draw(st.sampled_from(["take", "close", "advance", "commit", "seek"])):
            case "take":
                offsets = []
                for gap in data.draw(st.lists(st.integers(0, 2), max_size=4)):
                    offsets.append(position + gap)
                    position += gap + 1
                claims.take(records(*offsets))
                open_ |= set(offsets)
            case "close" if open_:
                done = data.draw(st.sampled_from(sorted(open_)))
                claim.close([done])
                open_.discard(done)
            case "advance":
                position += data.draw(st.integers(0, 3))
                claims.advance({P0: position})
            case "commit":
                if (offset := claim.to_commit()) is not None:
                    assert offset <= min(open_, default=position)
                    committed = offset
                    claim.committed(offset)
            case "seek":
                position = committed
                claims.renew(P0, position)
                open_.clear()
    for offset in sorted(open_):
        claim_of(claims).close([offset])
    assert (claim_of(claims).to_commit() or committed) <= position
