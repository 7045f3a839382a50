"""Which ids of its tenure an owner knows: those that run, and those that have ended within the window of repeats."""

from consumers.worker.known import KnownRequests
from consumers.worker.takeover import DEDUP_WINDOW_MS, Gone, Running
from tests.consumers.worker.builders import ACCEPTED_AT_MS, running, sequence


def test_an_id_runs_then_is_gone_then_is_forgotten() -> None:
    known, first, second = KnownRequests(), running(sequence("a")), running(sequence("b"))
    assert known.find(first.identity) is None
    known.begin(first)
    known.begin(second)
    assert (known.find(first.identity), known.running_one(first.identity)) == (Running(5), first)
    assert known.running == [first, second]
    known.end(first, result_offset=7, now_ms=ACCEPTED_AT_MS)
    assert (known.find(first.identity), known.running_one(first.identity)) == (Gone(5, 7, ACCEPTED_AT_MS), None)
    known.end(second, result_offset=8, now_ms=ACCEPTED_AT_MS + DEDUP_WINDOW_MS)
    assert known.find(first.identity) is not None
    third = running(sequence("c"))
    known.begin(third)
    known.end(third, result_offset=9, now_ms=ACCEPTED_AT_MS + DEDUP_WINDOW_MS + 1)
    assert known.find(first.identity) is None
    assert known.find(second.identity) is not None


def test_the_same_id_of_another_tenant_or_session_is_another() -> None:
    known = KnownRequests()
    known.begin(running(sequence("a")))
    for other in (sequence("a", tenant="acme"), sequence("a", key="s", session="s")):
        assert known.find(running(other).identity) is None
