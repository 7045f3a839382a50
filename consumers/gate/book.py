"""All sessions of one partition, rebuilt from the records on `sessions` when the partition is taken over."""

from collections.abc import Iterable
from typing import NamedTuple

from consumers.cancels import CancelOf, nobody_cancelled
from consumers.gate.sessions import Session, Waiting
from runtime.logging import get_logger
from schemas.codec import SESSION, TURN
from schemas.errors import MalformedRecord
from schemas.sessions import ParkedTurn, SessionRecord, SessionState, session_record_key

log = get_logger(__name__)


class SessionKey(NamedTuple):
    """Two tenants may use one session id: a session is known by both."""

    tenant: str
    session: str


class SessionBook:
    """The sessions of one partition."""

    def __init__(self) -> None:
        self._sessions: dict[SessionKey, Session] = {}
        # Those with parked turns, so that looking for expired ones does not walk over all sessions there ever were.
        self._with_parked: set[SessionKey] = set()

    def __getitem__(self, key: SessionKey) -> Session:
        """The session; one that was never heard of is a new one."""
        found = self._sessions.get(key)
        return found or Session(SessionState(session=key.session, tenant=key.tenant))

    def __setitem__(self, key: SessionKey, session: Session) -> None:
        """Note where a session stands now."""
        self._sessions[key] = session
        if session.parked:
            self._with_parked.add(key)
        else:
            self._with_parked.discard(key)

    @property
    def num_parked(self) -> int:
        """How many turns wait."""
        return sum(len(self._sessions[key].parked) for key in self._with_parked)

    def due(self, now_ms: float, cancel_of: CancelOf = nobody_cancelled) -> list[SessionKey]:
        """The sessions that change without a record of theirs: see `sessions.end_early`."""
        return [key for key in self._with_parked if self._sessions[key].is_due(now_ms, cancel_of)]


def rebuild(records: Iterable[tuple[bytes | None, bytes | None]]) -> SessionBook:
    """The book that (key, value) pairs of `sessions` describe, given in the order of the log."""
    newest: dict[bytes, SessionState | Waiting] = {}
    for key, value in records:
        if key is None:
            continue
        newest.pop(key, None)
        if value is not None and (entry := _decode(key, value)) is not None:
            newest[key] = entry
    book = SessionBook()
    parked: dict[SessionKey, list[Waiting]] = {}
    for entry in newest.values():
        if isinstance(entry, SessionState):
            book[SessionKey(entry.tenant, entry.session)] = Session(entry)
        else:
            parked.setdefault(SessionKey(entry.record.tenant, entry.record.session), []).append(entry)
    for session, waiting in parked.items():
        in_order = tuple(sorted(waiting, key=lambda one: one.record.position))
        book[session] = book[session]._replace(parked=in_order)
    return book


def _check_key(key: bytes, record: SessionRecord) -> None:
    position = record.position if isinstance(record, ParkedTurn) else None
    if key != session_record_key(record.tenant, record.session, position):
        raise MalformedRecord("it stands under a key that is not its own, and could never be deleted")


def _decode(key: bytes, value: bytes) -> SessionState | Waiting | None:
    try:
        record = SESSION.decode(value)
        _check_key(key, record)
        if isinstance(record, SessionState):
            return record
        return Waiting(record, TURN.decode(record.turn).envelope)
    except MalformedRecord as error:
        # Only a gate writes here. One damaged record must not hold up all the other sessions of the partition.
        log.error("session_record_unreadable", key=key.decode("utf-8", "replace"), error=error.message)  # noqa: TRY400
        return None
