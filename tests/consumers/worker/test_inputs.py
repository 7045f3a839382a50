"""How far back in `tokens` a successor must read."""

from hypothesis import given
from hypothesis import strategies as st

from consumers.worker.inputs import OpenInputs


def test_nothing_open_means_nothing_behind_the_end() -> None:
    inputs = OpenInputs(inherited_low=0, inherited_until=0)
    assert inputs.tokens_low(committed=0, next_offset=0, end_offset=50) == 50


def test_the_lowest_open_record_decides() -> None:
    inputs = OpenInputs(inherited_low=0, inherited_until=0)
    inputs.open(0, num_members=1, tokens_low=20)
    inputs.open(1, num_members=1, tokens_low=30)
    assert inputs.tokens_low(committed=0, next_offset=2, end_offset=50) == 20
    assert inputs.tokens_low(committed=1, next_offset=2, end_offset=50) == 30


def test_a_record_that_ended_behind_an_open_one_is_still_needed_since_it_is_polled_again() -> None:
    inputs = OpenInputs(inherited_low=0, inherited_until=0)
    inputs.open(0, num_members=1, tokens_low=40)
    ended = inputs.open(1, num_members=1, tokens_low=20)
    ended.num_open = 0
    assert inputs.tokens_low(committed=0, next_offset=2, end_offset=50) == 20


def test_until_all_that_the_predecessor_had_is_polled_its_own_low_holds() -> None:
    inputs = OpenInputs(inherited_low=10, inherited_until=3)
    inputs.open(0, num_members=1, tokens_low=40)
    assert inputs.tokens_low(committed=0, next_offset=1, end_offset=50) == 10
    assert inputs.tokens_low(committed=0, next_offset=3, end_offset=50) == 40


@given(
    polled=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 50), st.integers(0, 50)), max_size=30),
    commits=st.lists(st.integers(0, 60), max_size=30),
)
def test_the_lowest_that_matters_is_that_of_all_polled_from_the_committed_offset_on(
    polled: list[tuple[int, int, int]], commits: list[int]
) -> None:
    inputs, lows, offset, committed = OpenInputs(inherited_low=0, inherited_until=0), dict[int, int](), 0, 0
    for place, (gap, low, lowered) in enumerate(polled):
        offset += gap
        inputs.open(offset, num_members=1, tokens_low=low).tokens_low = lows[offset] = min(low, lowered)
        if place < len(commits):
            committed = max(committed, min(commits[place], offset))
            expected = min(lows[one] for one in lows if one >= committed)
            assert inputs.tokens_low(committed=committed, next_offset=offset + 1, end_offset=60) == expected


def test_a_record_that_stays_open_for_hours_makes_no_commit_slower() -> None:
    """Its result may wait for object storage, and each commit asks."""
    inputs = OpenInputs(inherited_low=0, inherited_until=0)
    for offset in range(10_000):
        inputs.open(offset, num_members=1, tokens_low=offset // 100)
    assert inputs.tokens_low(committed=0, next_offset=10_000, end_offset=500) == 0
    assert len(inputs._lows) == 100
