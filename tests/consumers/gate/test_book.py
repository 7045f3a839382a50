"""The sessions of a partition, rebuilt from the records that were written of them."""

import pytest

from consumers.gate.book import SessionBook, SessionKey, rebuild
from consumers.gate.outgoing import Outgoing
from consumers.gate.sessions import Session, Step, arrive, end, stored
from schemas.codec import SESSION
from schemas.names import Names
from schemas.sessions import SessionState, session_record_key
from tests.consumers.gate.builders import NOW_MS, forwarded, result_of

NAMES = Names("test")
OUTGOING = Outgoing(NAMES, 0)
KEY = SessionKey("default", "s1")
Pairs = list[tuple[bytes | None, bytes | None]]


def written(step: Step) -> Pairs:
    records = [OUTGOING.effect(effect) for effect in step.effects]
    return [(record.key, record.value) for record in records if record.topic == NAMES.sessions]


def history(*request_ids: str, completed: int = 0) -> tuple[Session, Pairs]:
    """A session that got these turns, of which the first ones completed, and all that was written of it."""
    session = SessionBook()[KEY]
    log: Pairs = []
    for request_id in request_ids:
        decision = forwarded(request_id)
        step = arrive(session, decision.turn, decision.value, "interactive", max_parked=9)
        session, log = step.session, [*log, *written(step)]
    for request_id in request_ids[:completed]:
        result = result_of(forwarded(request_id).turn)
        storing = end(session, result, object_key=NAMES.object_key, now_ms=NOW_MS).session
        step = stored(storing, f"object of {request_id}", now_ms=NOW_MS)
        session, log = step.session, [*log, *written(step)]
    return session, log


@pytest.mark.parametrize("completed", range(4))
def test_a_session_is_rebuilt_as_it_was(completed: int) -> None:
    session, log = history("r1", "r2", "r3", completed=completed)
    book = rebuild(log)
    assert book[KEY] == session
    assert book.num_parked == len(session.parked)


@pytest.mark.parametrize("completed", range(4))
def test_compaction_changes_nothing(completed: int) -> None:
    session, log = history("r1", "r2", "r3", completed=completed)
    newest = {key: value for key, value in log}  # noqa: C416 (what compaction does, spelled out)
    in_order = [pair for n, pair in enumerate(log) if pair not in log[n + 1 :] and newest[pair[0]] == pair[1]]
    assert rebuild(in_order)[KEY] == session


def test_a_session_that_was_never_heard_of_is_a_new_one() -> None:
    assert rebuild([])[KEY] == Session(SessionState(session="s1", tenant="default"))


def test_tenants_do_not_share_sessions() -> None:
    _, log = history("r1")
    assert rebuild(log)[SessionKey("acme", "s1")].is_idle


def test_one_damaged_record_spoils_no_other_session() -> None:
    _, log = history("r1", "r2")
    damaged: Pairs = [
        (None, b"no key"),
        (b"default/s2", b"\xff"),
        (session_record_key("default", "s3", 0), b'{"schema": "parked/1"}'),
        (b"default/s4", b'{"schema": "poem/1"}'),
    ]
    book = rebuild([*damaged, *log])
    assert book[KEY].state.running == "r1"
    assert book.num_parked == 1


def test_a_session_that_was_deleted_is_a_new_one() -> None:
    _, log = history("r1")
    book = rebuild([*log, (session_record_key("default", "s1"), None)])
    assert book[KEY].is_idle


def test_turns_whose_session_was_lost_are_due_at_once() -> None:
    _, log = history("r1", "r2")
    book = rebuild([*log, (session_record_key("default", "s1"), b"damaged")])
    assert book.due(NOW_MS) == [KEY]


def test_only_sessions_with_an_overdue_turn_are_due() -> None:
    session, _ = history("r1", "r2")
    deadline_ms = session.parked[0].envelope.deadline_ms
    book = SessionBook()
    book[KEY] = session
    book[SessionKey("default", "idle")] = Session(SessionState(session="idle", tenant="default"))
    assert book.due(deadline_ms - 1) == []
    assert book.due(deadline_ms) == [KEY]
    book[KEY] = session._replace(parked=())
    assert (book.due(deadline_ms), book.num_parked) == ([], 0)


def test_what_is_on_sessions_can_be_read_by_anyone() -> None:
    session, log = history("r1")
    assert SESSION.decode(log[-1][1]) == session.state
