"""Decisions as records: topic, key, value and headers of all that the gate writes for one partition number."""

from consumers.gate.admission import Deposit, Forward, Refuse, Reroute
from consumers.gate.arrival import Arrival
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
from consumers.transactor import OutRecord
from runtime.headers import record_headers
from runtime.tracing import Headers
from schemas.codec import DEAD_LETTER, RESULT, SESSION, TURN
from schemas.control import DeadLetter
from schemas.envelope import Envelope
from schemas.names import Lane, Names
from schemas.results import DuplicateOf, Result
from schemas.sessions import ParkedTurn, session_record_key

SOURCE = "headrace/gate"
SOURCE_HEADER = "ce_source"

# A longer key is none of ours; the bundle has it whole.
_MAX_KEY_BYTES = 1024


def is_own(headers: Headers) -> bool:
    """Whether a record was written by a gate."""
    return (SOURCE_HEADER, SOURCE.encode()) in headers


class Outgoing:
    """Writes every record to the partition number of the request that it is about."""

    def __init__(self, names: Names, partition: int) -> None:
        self._names = names
        self._partition = partition

    def forwarded(self, decision: Forward | Deposit, lane: Lane) -> OutRecord:
        """The turn of a request without a session."""
        return self._turn(decision.turn.envelope, decision.value, lane)

    def rerouted(self, decision: Reroute, arrival: Arrival) -> OutRecord:
        """A request in the partition where its key belongs."""
        return OutRecord(arrival.topic, decision.partition, decision.key, arrival.value, decision.headers)

    def ended(self, envelope: Envelope, result: Result) -> OutRecord:
        """A terminal record."""
        return self._about("result", envelope, self._names.results, RESULT.encode(result))

    def repeat(self, envelope: Envelope, *, has_ended: bool) -> OutRecord:
        """Says that a request was sent again. Without a session: nothing waits for it here."""
        record = DuplicateOf(request_id=envelope.request_id, tenant=envelope.tenant, has_ended=has_ended)
        return self._about("duplicate", envelope, self._names.results, RESULT.encode(record))

    def dead_letter(self, letter: DeadLetter, decision: Refuse) -> OutRecord:
        """The bundle of a broken record, under the key that it had."""
        key = letter.key if letter.key and len(letter.key) <= _MAX_KEY_BYTES else decision.envelope.key.encode()
        headers = record_headers("dead-letter", decision.envelope, source=SOURCE)
        return OutRecord(self._names.dead_letters, self._partition, key, DEAD_LETTER.encode(letter), headers)

    def effect(self, effect: Effect) -> OutRecord:
        """What a session's step asks to be written."""
        match effect:
            case ForwardTurn(turn, lane):
                return self._turn(turn.envelope, TURN.encode(turn), lane)
            case EndTurn(turn, result):
                return self.ended(turn.envelope, result)
            case PointToFirst(turn, has_ended):
                return self.repeat(turn.envelope, has_ended=has_ended)
            case SaveState(state):
                return self._session(session_record_key(state.tenant, state.session), SESSION.encode(state))
            case Park(record):
                return self._session(_parked_key(record), SESSION.encode(record))
            case Unpark(record):
                return self._session(_parked_key(record), None)
            case PutObject() | FetchContent():
                raise TypeError("what is done with object storage is no record")

    def _turn(self, envelope: Envelope, value: bytes, lane: Lane) -> OutRecord:
        return self._about("turn", envelope, self._names.turns(lane), value)

    def _about(self, kind: str, envelope: Envelope, topic: str, value: bytes) -> OutRecord:
        headers = record_headers(kind, envelope, source=SOURCE)
        return OutRecord(topic, self._partition, envelope.key.encode(), value, headers)

    def _session(self, key: bytes, value: bytes | None) -> OutRecord:
        return OutRecord(self._names.sessions, self._partition, key, value)


def _parked_key(record: ParkedTurn) -> bytes:
    return session_record_key(record.tenant, record.session, record.position)
