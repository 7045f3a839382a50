"""Work that hangs is noticed in time, and only work of a process that ran."""

import itertools
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.stall import TICK_S, StallTimer, StallWatch

WAIT_S = 20.0


def look_for(timer: StallTimer, work: int | None, seconds: float, start_s: float) -> float:
    """Look each tick for a while; the time at its end."""
    now_s = start_s
    while now_s <= start_s + seconds:
        timer.look(work, now_s)
        now_s += TICK_S
    return now_s


def test_work_that_goes_on_grows_older_and_the_next_piece_begins_anew() -> None:
    timer = StallTimer()
    now_s = look_for(timer, 1, 3.0, 0.0)
    assert 2.5 <= timer.age_s <= 3.0
    timer.look(2, now_s)
    assert timer.age_s == 0.0
    assert 2.5 <= timer.longest_ended_s <= 3.0


def test_idleness_is_no_work() -> None:
    timer = StallTimer()
    look_for(timer, None, 60.0, 0.0)
    assert timer.age_s == timer.longest_ended_s == 0.0


def test_time_in_which_nobody_looked_is_not_counted() -> None:
    timer = StallTimer()
    now_s = look_for(timer, 1, 1.0, 0.0)
    timer.look(1, now_s + 3600.0)
    assert timer.age_s < 3.0


@given(st.lists(st.tuples(st.sampled_from([None, 1, 2, 3]), st.floats(0.0, 10.0)), max_size=50))
def test_the_age_is_never_above_the_time_for_which_the_work_was_seen(looks: list[tuple[int | None, float]]) -> None:
    timer = StallTimer()
    now_s = since_s = 0.0
    before: int | None = None
    for work, gap_s in looks:
        now_s += gap_s
        if work != before:
            before, since_s = work, now_s
        assert 0.0 <= timer.look(work, now_s) <= now_s - since_s + 1e-6


@pytest.fixture
def watched() -> Iterator[tuple[StallWatch, list[object], threading.Event]]:
    work: list[object] = [None]
    acted = threading.Event()
    watch = StallWatch(lambda: work[0], limit_s=2 * TICK_S, on_limit=lambda _: acted.set())
    watch.start()
    yield watch, work, acted
    watch.stop()


def test_the_watch_acts_when_a_piece_of_work_is_too_old(
    watched: tuple[StallWatch, list[object], threading.Event],
) -> None:
    watch, work, acted = watched
    work[0] = "a step"
    assert acted.wait(WAIT_S)
    assert watch.age_s > 2 * TICK_S


def test_the_watch_lets_many_short_pieces_pass() -> None:
    pieces = itertools.count()
    acted = threading.Event()
    looked = threading.Semaphore(0)

    def work() -> int:
        looked.release()
        return next(pieces)

    watch = StallWatch(work, limit_s=TICK_S, on_limit=lambda _: acted.set())
    watch.start()
    for _ in range(6):
        assert looked.acquire(timeout=WAIT_S)
    watch.stop()
    assert not acted.is_set()


def test_a_watch_that_never_started_can_be_stopped() -> None:
    StallWatch(lambda: None, limit_s=1.0, on_limit=lambda _: None).stop()
