"""The order of a session's turns, one event at a time."""

from itertools import pairwise

import pytest

from consumers.gate.effects import EndTurn, ForwardTurn, Park, PointToFirst, PutObject, SaveState, Unpark
from consumers.gate.sessions import Session, Step, arrive, end, end_early, end_repeat, stored
from schemas.codec import SESSION_TURN
from schemas.envelope import Status
from schemas.names import Names
from schemas.sessions import SessionState
from schemas.turns import BaseTurn, Turn
from tests.consumers.gate.builders import HASHES, NOW_MS, forwarded, result_of

NAMES = Names("test")
NEW = Session(SessionState(session="s1", tenant="default"))
FAILURES: list[Status] = ["failed", "cancelled", "expired"]


def arriving(session: Session, request_id: str, *, max_parked: int = 4, ttl_s: float = 60.0) -> Step:
    decision = forwarded(request_id, ttl_s=ttl_s)
    return arrive(session, decision.turn, decision.value, "interactive", max_parked=max_parked)


def with_turns(*request_ids: str, max_parked: int = 4) -> Session:
    session = NEW
    for request_id in request_ids:
        session = arriving(session, request_id, max_parked=max_parked).session
    return session


def turn_of(step: Step) -> Turn:
    (found,) = [effect.turn for effect in step.effects if isinstance(effect, ForwardTurn)]
    return found


def ending(session: Session, request_id: str, *, status: Status = "completed", now_ms: float = NOW_MS) -> Step:
    turn = forwarded(request_id).turn
    return end(session, result_of(turn, status=status), object_key=NAMES.object_key, now_ms=now_ms)


def completing(session: Session, request_id: str, *, now_ms: float = NOW_MS) -> Step:
    (put,) = ending(session, request_id).effects
    assert isinstance(put, PutObject)
    return stored(ending(session, request_id).session, put.key, now_ms=now_ms)


def test_the_first_turn_is_forwarded_at_once_and_has_no_base() -> None:
    step = arriving(NEW, "r1")
    assert step.session.state.running == "r1"
    assert [type(effect) for effect in step.effects] == [SaveState, ForwardTurn]
    assert turn_of(step).base is None
    assert turn_of(step).envelope.turn == 1


def test_a_turn_that_arrives_while_another_runs_is_parked_with_all_that_it_needs() -> None:
    step = arriving(with_turns("r1"), "r2")
    (park,) = step.effects
    assert isinstance(park, Park)
    assert (park.record.request_id, park.record.turn) == ("r2", forwarded("r2", ttl_s=60.0).value)
    assert step.session.state.running == "r1"


def test_parked_turns_have_places_of_their_own_in_order() -> None:
    session = with_turns("r1", "r2", "r3", "r4")
    positions = [one.record.position for one in session.parked]
    assert all(first < second for first, second in pairwise(positions))
    again = arriving(completing(session, "r1").session, "r5").session
    assert len({one.record.position for one in again.parked}) == len(again.parked) == 3


def test_a_turn_over_the_limit_is_refused_and_changes_nothing() -> None:
    session = with_turns("r1", "r2", "r3", max_parked=2)
    step = arriving(session, "r4", max_parked=2)
    (ended,) = step.effects
    assert isinstance(ended, EndTurn)
    assert ended.result.error is not None
    assert (ended.result.status, ended.result.error.code) == ("failed", "session_unavailable")
    assert step.session == session


def test_a_completed_turn_is_put_before_anything_else_happens() -> None:
    step = ending(with_turns("r1", "r2"), "r1")
    (put,) = step.effects
    assert isinstance(put, PutObject)
    assert put.key == "test/sessions/default/s1/000001-r1.json"
    assert step.session.state.running == "r1"


def test_the_object_holds_this_turn_only_with_the_exact_token_ids() -> None:
    turn = turn_of(arriving(NEW, "r1"))
    result = result_of(turn, answer=(90, 91, 92), base=3)
    (put,) = end(with_turns("r1"), result, object_key=NAMES.object_key, now_ms=NOW_MS).effects
    assert isinstance(put, PutObject)
    content = put.content
    assert content.token_ids == [3, 4, 5, 6, 90, 91, 92]
    assert [message.text for message in content.messages] == ["hello", "answer to r1"]
    assert (content.turn, content.request_id, content.parent, content.hashes) == (1, "r1", None, HASHES)
    assert SESSION_TURN.decode(SESSION_TURN.encode(content)) == content


def test_a_stored_turn_advances_the_session_and_lets_the_next_one_go_on_it() -> None:
    step = completing(with_turns("r1", "r2", "r3"), "r1")
    state = step.session.state
    key = "test/sessions/default/s1/000001-r1.json"
    assert (state.turn, state.object, state.running) == (1, key, "r2")
    assert (state.last_request, state.outcome) == ("r1", "completed")
    assert turn_of(step).base == BaseTurn(turn=1, object=key)
    assert turn_of(step).envelope.turn == 2
    assert [type(effect) for effect in step.effects] == [SaveState, Unpark, ForwardTurn]
    assert [one.record.request_id for one in step.session.parked] == ["r3"]


@pytest.mark.parametrize("status", FAILURES)
def test_a_turn_that_did_not_complete_releases_the_next_but_does_not_advance(status: Status) -> None:
    step = ending(with_turns("r1", "r2"), "r1", status=status)
    state = step.session.state
    assert (state.turn, state.object, state.running, state.outcome) == (0, None, "r2", status)
    assert turn_of(step).base is None


@pytest.mark.parametrize("missing", ["choices", "hashes"])
def test_a_completed_result_that_cannot_be_built_upon_counts_as_failed(missing: str) -> None:
    result = result_of(forwarded("r1").turn)
    setattr(result, missing, [] if missing == "choices" else None)
    step = end(with_turns("r1", "r2"), result, object_key=NAMES.object_key, now_ms=NOW_MS)
    assert (step.session.state.turn, step.session.state.outcome, step.session.state.running) == (0, "failed", "r2")


def test_a_session_whose_last_turn_has_ended_is_idle_again() -> None:
    session = completing(with_turns("r1"), "r1").session
    assert session.is_idle
    assert turn_of(arriving(session, "r2")).base is not None


@pytest.mark.parametrize("status", ["completed", *FAILURES])
def test_the_result_of_a_turn_that_is_not_running_changes_nothing(status: Status) -> None:
    session = with_turns("r1", "r2")
    assert ending(session, "r2", status=status) == Step(session)
    assert ending(NEW, "r1", status=status) == Step(NEW)


@pytest.mark.parametrize("status", ["completed", *FAILURES])
def test_only_the_first_result_of_the_running_turn_counts(status: Status) -> None:
    session = ending(with_turns("r1", "r2"), "r1").session
    assert ending(session, "r1", status=status) == Step(session)


def test_turns_go_on_arriving_while_an_object_is_put() -> None:
    session = ending(with_turns("r1"), "r1").session
    step = arriving(session, "r2")
    assert [type(effect) for effect in step.effects] == [Park]
    after = stored(step.session, "key", now_ms=NOW_MS)
    assert turn_of(after).base == BaseTurn(turn=1, object="key")


@pytest.mark.parametrize("repeated", ["r1", "r2"])
def test_a_repeat_of_a_running_or_parked_turn_changes_nothing_and_is_said_to_be_one(repeated: str) -> None:
    session = with_turns("r1", "r2")
    step = arriving(session, repeated)
    assert step.session == session
    (said,) = step.effects
    assert isinstance(said, PointToFirst)
    assert (said.turn.envelope.request_id, said.has_ended) == (repeated, False)


@pytest.mark.parametrize("has_next", [True, False])
def test_a_repeat_of_the_turn_that_ended_last_points_to_it(has_next: bool) -> None:
    session = completing(with_turns("r1", *(["r2"] if has_next else [])), "r1").session
    step = arriving(session, "r1")
    assert step.session == session
    assert [isinstance(said, PointToFirst) and said.has_ended for said in step.effects] == [True]


def test_a_parked_turn_whose_deadline_passes_ends_at_once() -> None:
    session = arriving(with_turns("r1"), "r2", ttl_s=5).session
    session = arriving(session, "r3", ttl_s=60).session
    assert end_early(session, now_ms=NOW_MS + 4_999) == Step(session)
    step = end_early(session, now_ms=NOW_MS + 5_000)
    unpark, ended = step.effects
    assert isinstance(unpark, Unpark)
    assert isinstance(ended, EndTurn)
    assert (unpark.record.request_id, ended.result.request_id, ended.result.status) == ("r2", "r2", "expired")
    assert [one.record.request_id for one in step.session.parked] == ["r3"]
    assert step.session.state.running == "r1"


def test_a_turn_that_expired_while_it_was_parked_is_not_forwarded() -> None:
    session = arriving(with_turns("r1"), "r2", ttl_s=5).session
    session = arriving(session, "r3", ttl_s=60).session
    step = completing(session, "r1", now_ms=NOW_MS + 10_000)
    assert step.session.state.running == "r3"
    assert step.session.parked == ()
    assert [effect.result.request_id for effect in step.effects if isinstance(effect, EndTurn)] == ["r2"]


def test_when_all_that_waited_has_expired_the_session_is_idle() -> None:
    session = arriving(with_turns("r1"), "r2", ttl_s=5).session
    step = ending(session, "r1", status="failed", now_ms=NOW_MS + 10_000)
    assert step.session.is_idle
    assert step.effects[0] == SaveState(step.session.state)


def test_turns_that_wait_for_nobody_are_let_go() -> None:
    lost = with_turns("r1", "r2", "r3")._replace(state=NEW.state)
    assert lost.is_due(NOW_MS)
    step = end_early(lost, now_ms=NOW_MS)
    assert step.session.state.running == "r2"
    assert turn_of(step).envelope.request_id == "r2"


def test_a_parked_turn_stays_in_the_lane_that_it_came_by() -> None:
    decision = forwarded("r2")
    session = arrive(with_turns("r1"), decision.turn, decision.value, "bulk", max_parked=4).session
    (forward,) = [one for one in completing(session, "r1").effects if isinstance(one, ForwardTurn)]
    assert forward.lane == "bulk"


def test_a_repeat_of_a_turn_that_ended_long_before_releases_the_next_and_does_not_advance() -> None:
    session = completing(arriving(NEW, "a").session, "a").session
    session = completing(arriving(session, "b").session, "b").session
    waiting = arriving(arriving(session, "a").session, "c").session
    step = end_repeat(waiting, "a", now_ms=NOW_MS)
    assert turn_of(step).envelope.request_id == "c"
    assert (step.session.state.turn, step.session.state.running) == (2, "c")


def test_what_is_said_of_a_repeat_changes_nothing_for_another_turn_or_one_whose_object_is_being_put() -> None:
    running = with_turns("a", "b")
    assert end_repeat(running, "b", now_ms=NOW_MS) == Step(running)
    storing = ending(running, "a").session
    assert end_repeat(storing, "a", now_ms=NOW_MS) == Step(storing)
