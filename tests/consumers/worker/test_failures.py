"""How often a partition may fail before the process ends."""

from consumers.worker.failures import FAILURE_WINDOW_S, FENCE_WINDOW_S, MAX_FAILURES, FailureLimit
from schemas.errors import BrokerUnavailable, Fenced

FENCED, FAILED = Fenced("another process"), BrokerUnavailable("no answer")


def test_two_fences_close_together_mean_that_another_process_has_our_id() -> None:
    limit = FailureLimit()
    assert limit.note(FENCED, 0.0).is_borne
    assert not limit.note(FENCED, FENCE_WINDOW_S - 1).is_borne


def test_fences_far_apart_are_rebalances() -> None:
    limit = FailureLimit()
    assert all(limit.note(FENCED, number * FENCE_WINDOW_S).is_borne for number in range(10))


def test_other_failures_are_borne_up_to_a_limit_with_growing_pauses() -> None:
    limit = FailureLimit()
    verdicts = [limit.note(FAILED, float(number)) for number in range(MAX_FAILURES)]
    assert [verdict.is_borne for verdict in verdicts] == [True] * (MAX_FAILURES - 1) + [False]
    assert [verdict.pause_s for verdict in verdicts[:6]] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0]


def test_a_broker_that_is_away_for_a_minute_is_borne() -> None:
    limit, now_s = FailureLimit(), 0.0
    while now_s < 60.0:
        verdict = limit.note(FAILED, now_s)
        assert verdict.is_borne
        now_s += verdict.pause_s


def test_failures_far_apart_are_borne_for_ever() -> None:
    limit = FailureLimit()
    assert all(limit.note(FAILED, number * FAILURE_WINDOW_S / 2).is_borne for number in range(20))


def test_a_fence_and_a_failure_are_counted_apart() -> None:
    limit = FailureLimit()
    assert limit.note(FAILED, 0.0).is_borne
    assert limit.note(FENCED, 1.0).is_borne
