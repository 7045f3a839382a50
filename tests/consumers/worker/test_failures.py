"""How often a partition may fail before the process ends."""

from consumers.worker.failures import FAILURE_WINDOW_S, FENCE_WINDOW_S, MAX_FAILURES, FailureLimit
from schemas.errors import BrokerUnavailable, Fenced

FENCED, FAILED = Fenced("another process"), BrokerUnavailable("no answer")


def test_two_fences_close_together_mean_that_another_process_has_our_id() -> None:
    limit = FailureLimit()
    assert not limit.note(FENCED, 0.0)
    assert limit.note(FENCED, FENCE_WINDOW_S - 1)


def test_fences_far_apart_are_rebalances() -> None:
    limit = FailureLimit()
    assert not any(limit.note(FENCED, number * FENCE_WINDOW_S) for number in range(10))


def test_other_failures_are_borne_up_to_a_limit() -> None:
    limit = FailureLimit()
    assert [limit.note(FAILED, float(number)) for number in range(MAX_FAILURES)] == [False] * (MAX_FAILURES - 1) + [
        True
    ]


def test_failures_far_apart_are_borne_for_ever() -> None:
    limit = FailureLimit()
    assert not any(limit.note(FAILED, number * FAILURE_WINDOW_S / 2) for number in range(20))


def test_a_fence_and_a_failure_are_counted_apart() -> None:
    limit = FailureLimit()
    assert not limit.note(FAILED, 0.0)
    assert not limit.note(FENCED, 1.0)
