"""The order of a session's turns, as a pure state machine: a session and an event in, the new session and effects out.

One turn runs at a time; the others are parked. Each event's effects are written in one transaction, together with the
offset of the record that was the event: so a session that is rebuilt from the records is always one that was.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from consumers.cancels import CancelOf, nobody_cancelled
from consumers.gate.effects import (
    Effect,
    EndTurn,
    FetchContent,
    ForwardTurn,
    Park,
    PointToFirst,
    PutObject,
    SaveState,
    Unpark,
)
from consumers.gate.refusals import cancelled, expired, refused_turn
from schemas.codec import TURN
from schemas.envelope import Envelope, Status
from schemas.errors import SessionUnavailable
from schemas.names import Lane
from schemas.requests import Message
from schemas.results import Result, ResultChoice
from schemas.sessions import ParkedTurn, SessionState, SessionTurn, session_turn_key
from schemas.turns import BaseTurn, Turn


class Waiting(NamedTuple):
    """A parked turn, and the envelope that it has inside: who asked, until when it may wait."""

    record: ParkedTurn
    envelope: Envelope

    def ends_early(self, now_ms: float, cancel_of: CancelOf) -> bool:
        """Whether it must not be forwarded any more: too late or cancelled."""
        return self.envelope.deadline_ms <= now_ms or cancel_of(self.envelope) is not None


class Session(NamedTuple):
    """One session. `storing` is the running turn's result while its object is being put."""

    state: SessionState
    parked: tuple[Waiting, ...] = ()
    storing: Result | None = None

    @property
    def is_idle(self) -> bool:
        """Whether the next turn can be forwarded at once."""
        return self.state.running is None and not self.parked

    def is_due(self, now_ms: float, cancel_of: CancelOf = nobody_cancelled) -> bool:
        """Whether `end_early` changes it: a parked turn is overdue or cancelled, or waits for nobody."""
        waits_for_nobody = bool(self.parked) and self.state.running is None
        return waits_for_nobody or any(one.ends_early(now_ms, cancel_of) for one in self.parked)

    def knows(self, request_id: str) -> bool:
        """Whether the id belongs to a turn that runs, waits, or was the last to end."""
        return request_id in {
            self.state.running,
            self.state.last_request,
            *(one.record.request_id for one in self.parked),
        }

    def has_ended(self, request_id: str) -> bool:
        """Whether the id belongs to the turn that was the last to end, and to none that runs."""
        return request_id == self.state.last_request and request_id != self.state.running


class Step(NamedTuple):
    """What an event leads to."""

    session: Session
    effects: tuple[Effect, ...] = ()


def arrive(
    session: Session,
    turn: Turn,
    value: bytes,
    lane: Lane,
    *,
    max_parked: int,
    cancel_of: CancelOf = nobody_cancelled,
) -> Step:
    """A turn arrives: forwarded if none runs, else parked; over the limit it is refused.

    Repeats change nothing: who sent one waits for the result of the first, which may be in the log already.

    One that was cancelled on its way ends at once.
    """
    request_id = turn.envelope.request_id
    if session.knows(request_id):
        return Step(session, (PointToFirst(turn, session.has_ended(request_id)),))
    if (cancel := cancel_of(turn.envelope)) is not None:
        return Step(session, (EndTurn(turn, cancelled(turn, cancel)),))
    if session.is_idle:
        state = msgspec.structs.replace(session.state, running=request_id)
        return Step(Session(state), (SaveState(state), _forward(turn, state, lane)))
    if len(session.parked) >= max_parked:
        error = SessionUnavailable(f"{len(session.parked)} turns of the session wait already; wait for a result")
        return Step(session, (EndTurn(turn, refused_turn(turn, error)),))
    record = ParkedTurn(
        session=session.state.session,
        tenant=session.state.tenant,
        request_id=request_id,
        position=session.parked[-1].record.position + 1 if session.parked else 0,
        lane=lane,
        turn=value,
    )
    waiting = Waiting(record, turn.envelope)
    return Step(session._replace(parked=(*session.parked, waiting)), (Park(record),))


def end(session: Session, result: Result, *, object_key: Callable[[str], str], now_ms: float) -> Step:
    """A terminal record arrives. That of the running turn ends it; any other changes nothing.

    A completed turn is put into its object first; whatever else it is, the next turn is forwarded at once.
    """
    if session.storing is not None or result.request_id != session.state.running:
        return Step(session)
    if result.status == "completed" and result.claim is not None:
        return Step(session._replace(storing=result), (FetchContent(result),))
    return _settle(session, result, object_key, now_ms)


def fetched(session: Session, result: Result, *, object_key: Callable[[str], str], now_ms: float) -> Step:
    """The running turn's result is whole now; without choices if its content is lost: then nothing can build on it."""
    if session.storing is None or result.request_id != session.storing.request_id:
        return Step(session)
    return _settle(session._replace(storing=None), result, object_key, now_ms)


def _settle(session: Session, result: Result, object_key: Callable[[str], str], now_ms: float) -> Step:
    content = _content(session.state, result)
    if content is None:
        # A completed turn without content cannot be built upon: the session stays where it was.
        outcome: Status = "failed" if result.status == "completed" else result.status
        state = _ended(session.state, result.request_id, outcome)
        return _release(Session(state, session.parked), now_ms)
    key = session_turn_key(content.tenant, content.session, content.turn, content.request_id)
    return Step(session._replace(storing=result), (PutObject(object_key(key), content),))


def end_repeat(session: Session, request_id: str, *, now_ms: float) -> Step:
    """The running turn is a repeat of one that had ended before: nothing more will come of it, so let it go."""
    if session.storing is not None or request_id != session.state.running:
        return Step(session)
    state = msgspec.structs.replace(session.state, running=None, last_request=request_id)
    return _release(Session(state, session.parked), now_ms)


def stored(session: Session, key: str, *, now_ms: float) -> Step:
    """The object of the running turn is durable: the session advances to it, and the next turn is forwarded."""
    if session.storing is None:
        return Step(session)
    ended = _ended(session.state, session.storing.request_id, "completed")
    state = msgspec.structs.replace(ended, turn=ended.turn + 1, object=key)
    return _release(Session(state, session.parked), now_ms)


def end_early(session: Session, *, now_ms: float, cancel_of: CancelOf = nobody_cancelled) -> Step:
    """Time has passed, or somebody was cancelled: parked turns that must not be forwarded any more end at once.

    Turns that wait for nobody (the session's state was lost) are let go.
    """
    if session.state.running is None and session.parked:
        return _release(session, now_ms, cancel_of)
    ending = [one for one in session.parked if one.ends_early(now_ms, cancel_of)]
    kept = tuple(one for one in session.parked if one not in ending)
    return Step(
        session._replace(parked=kept), tuple(effect for one in ending for effect in _ended_early(one, cancel_of))
    )


def _release(session: Session, now_ms: float, cancel_of: CancelOf = nobody_cancelled) -> Step:
    """Forward the first parked turn that may still be, and save what became of the session."""
    effects: list[Effect] = []
    state, parked = session.state, session.parked
    while parked and state.running is None:
        head, parked = parked[0], parked[1:]
        if head.ends_early(now_ms, cancel_of):
            effects += _ended_early(head, cancel_of)
            continue
        state = msgspec.structs.replace(state, running=head.record.request_id)
        turn = TURN.decode(head.record.turn)
        effects += [Unpark(head.record), _forward(turn, state, _lane(head.record))]
    return Step(Session(state, parked), (SaveState(state), *effects))


def _forward(turn: Turn, state: SessionState, lane: Lane) -> ForwardTurn:
    base = BaseTurn(turn=state.turn, object=state.object) if state.object is not None else None
    envelope = msgspec.structs.replace(turn.envelope, turn=state.turn + 1)
    return ForwardTurn(msgspec.structs.replace(turn, envelope=envelope, base=base), lane)


def _ended_early(waiting: Waiting, cancel_of: CancelOf) -> list[Effect]:
    turn, cancel = TURN.decode(waiting.record.turn), cancel_of(waiting.envelope)
    return [Unpark(waiting.record), EndTurn(turn, expired(turn) if cancel is None else cancelled(turn, cancel))]


def _ended(state: SessionState, request_id: str, status: Status) -> SessionState:
    return msgspec.structs.replace(state, running=None, last_request=request_id, outcome=status)


def _lane(record: ParkedTurn) -> Lane:
    return "bulk" if record.lane == "bulk" else "interactive"


def _content(state: SessionState, result: Result) -> SessionTurn | None:
    """The object of a completed turn, from its result alone, so that putting it again puts the same bytes.

    None where the turn has not completed, or its result lacks what a next turn would need.
    """
    if result.status != "completed" or not result.choices or result.hashes is None:
        return None
    first = result.choices[0]
    return SessionTurn(
        tenant=state.tenant,
        session=state.session,
        turn=state.turn + 1,
        request_id=result.request_id,
        model=result.model,
        hashes=result.hashes,
        messages=[*result.messages, _answer(first)],
        token_ids=[*result.prompt_token_ids[result.num_base_tokens :], *first.token_ids],
        parent=state.object,
    )


def _answer(choice: ResultChoice) -> Message:
    return choice.message or Message(role="assistant", content=choice.content)
