"""Cancels of a session's turns: parked ones end at once, one that arrives cancelled is never begun."""

from consumers.cancels import CancelBook
from consumers.gate.effects import EndTurn, ForwardTurn, PointToFirst, SaveState, Unpark
from consumers.gate.sessions import Session, Step, arrive, end, end_early
from schemas.control import Cancel
from schemas.names import Names
from schemas.sessions import SessionState
from tests.consumers.gate.builders import NOW_MS, forwarded, result_of

NAMES = Names("test")


def book_of(*request_ids: str, tenant: str = "default") -> CancelBook:
    book = CancelBook(3_600.0)
    for request_id in request_ids:
        book.note(Cancel(request_id=request_id, session="s1", tenant=tenant, reason="enough"), NOW_MS + 1)
    return book


def arriving(session: Session, request_id: str, book: CancelBook | None = None, *, max_parked: int = 9) -> Step:
    decision = forwarded(request_id, ttl_s=60.0)
    return arrive(
        session,
        decision.turn,
        decision.value,
        "interactive",
        max_parked=max_parked,
        cancel_of=(book or CancelBook(1.0)).find,
    )


def with_turns(*request_ids: str) -> Session:
    session = Session(SessionState(session="s1", tenant="default"))
    for request_id in request_ids:
        session = arriving(session, request_id).session
    return session


def test_a_parked_turn_that_is_cancelled_ends_at_once_and_the_others_keep_their_order() -> None:
    session, book = with_turns("r1", "r2", "r3", "r4"), book_of("r3")
    assert session.is_due(NOW_MS, book.find)
    assert not session.is_due(NOW_MS)
    step = end_early(session, now_ms=NOW_MS, cancel_of=book.find)
    unpark, ended = step.effects
    assert isinstance(unpark, Unpark)
    assert isinstance(ended, EndTurn)
    assert (unpark.record.request_id, ended.result.request_id, ended.result.status) == ("r3", "r3", "cancelled")
    assert ended.result.error is not None
    assert ended.result.error.message == "the request was cancelled: enough"
    assert [one.record.request_id for one in step.session.parked] == ["r2", "r4"]
    assert step.session.state.running == "r1"
    assert not step.session.is_due(NOW_MS, book.find)


def test_a_cancel_of_the_running_turn_is_the_workers_to_answer() -> None:
    session, book = with_turns("r1", "r2"), book_of("r1")
    assert end_early(session, now_ms=NOW_MS, cancel_of=book.find) == Step(session)
    turn = forwarded("r1").turn
    step = end(session, result_of(turn, status="cancelled"), object_key=NAMES.object_key, now_ms=NOW_MS)
    assert (step.session.state.turn, step.session.state.outcome) == (0, "cancelled")
    assert step.session.state.running == "r2"


def test_a_turn_that_arrives_cancelled_ends_without_being_begun_or_parked() -> None:
    for session in (with_turns(), with_turns("r0"), with_turns("r0", "r2")):
        step = arriving(session, "r1", book_of("r1"), max_parked=1)
        (ended,) = step.effects
        assert isinstance(ended, EndTurn)
        assert ended.result.status == "cancelled"
        assert step.session == session


def test_a_repeat_of_a_turn_that_runs_or_waits_is_not_ended_beside_it() -> None:
    session = with_turns("r1", "r2")
    for repeated in ("r1", "r2"):
        step = arriving(session, repeated, book_of(repeated))
        assert step.session == session
        assert [type(effect) for effect in step.effects] == [PointToFirst]


def test_the_same_session_of_another_tenant_is_not_touched() -> None:
    session = with_turns("r1", "r2")
    assert end_early(session, now_ms=NOW_MS, cancel_of=book_of("r2", tenant="acme").find) == Step(session)


def test_turns_that_wait_for_nobody_are_let_go_without_the_cancelled_ones() -> None:
    """The state of the session was lost: the first that may still be forwarded is."""
    lost = with_turns("r1", "r2", "r3")._replace(state=SessionState(session="s1", tenant="default"))
    step = end_early(lost, now_ms=NOW_MS, cancel_of=book_of("r2").find)
    kinds = [type(effect) for effect in step.effects]
    assert kinds == [SaveState, Unpark, EndTurn, Unpark, ForwardTurn]
    assert step.session.state.running == "r3"


def test_cancelled_and_too_late_is_cancelled() -> None:
    session, book = with_turns("r1", "r2"), book_of("r2")
    step = end_early(session, now_ms=NOW_MS + 10**9, cancel_of=book.find)
    (ended,) = [effect for effect in step.effects if isinstance(effect, EndTurn)]
    assert ended.result.status == "cancelled"
