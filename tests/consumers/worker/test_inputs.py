"""How far back in `tokens` a successor must read."""

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
