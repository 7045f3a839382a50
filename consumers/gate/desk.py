"""Decides what is delivered to one partition number, with its sessions at hand. No Kafka and no waiting in here."""

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from consumers.gate import sessions
from consumers.gate.admission import AdmissionRules, Forward, Refuse, Reroute, admit
from consumers.gate.arrival import Arrival
from consumers.gate.book import SessionBook, SessionKey
from consumers.gate.outgoing import Outgoing, is_own
from consumers.gate.round import Letter, PlainTurn, Put, Round
from consumers.gate.sessions import EndTurn, PointToLast, PutObject, Step
from consumers.transactor import Position
from runtime.logging import bound, get_logger
from runtime.metrics import RECORDS_REFUSED
from runtime.tracing import traceparent_of
from schemas.codec import RESULT
from schemas.errors import MalformedRecord
from schemas.names import Names
from schemas.results import DuplicateOf, Result, ResultRecord

log = get_logger(__name__)


class Desk:
    """The decisions of one partition number. `book` is changed as they are made, before they are written.

    That is safe because what is decided is written in the order of the decisions; if it cannot be written the partition
    is let go, and the next owner starts from what was.
    """

    def __init__(self, names: Names, number: int, book: SessionBook, rules: AdmissionRules, *, max_parked: int) -> None:
        self._names = names
        self._book = book
        self._rules = rules
        self._max_parked = max_parked
        self._outgoing = Outgoing(names, number)

    @property
    def num_parked(self) -> int:
        """How many turns wait for their predecessor."""
        return self._book.num_parked

    def record(self, record: ConsumerRecord, now_ms: float, out: Round) -> None:
        """Decide one delivered record."""
        position = Position(TopicPartition(record.topic, record.partition), record.offset)
        with bound(topic=record.topic, partition=record.partition, offset=record.offset):
            if record.topic == self._names.results:
                self._result(record, position, now_ms, out)
            else:
                self._request(record, position, now_ms, out)

    def object_put(self, put: Put, now_ms: float, out: Round) -> None:
        """Go on with a session whose object is durable now."""
        step = sessions.stored(self._book[put.session], put.effect.key, now_ms=now_ms)
        self._apply(put.session, step, put.position, out)

    def time_passed(self, now_ms: float, out: Round) -> None:
        """End the parked turns whose deadline has come."""
        for key in self._book.due(now_ms):
            self._apply(key, sessions.expire(self._book[key], now_ms=now_ms), None, out)

    def _request(self, record: ConsumerRecord, position: Position, now_ms: float, out: Round) -> None:
        arrival = Arrival(
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp,
            key=record.key,
            value=record.value,
            headers=record.headers,
            traceparent=traceparent_of(record.headers),
        )
        match admit(arrival, self._rules, now_ms=now_ms):
            case Forward(turn, _) as decision if turn.envelope.session is None:
                out.plain.append(PlainTurn(self._outgoing.forwarded(decision, arrival.lane), position))
            case Forward(turn, value):
                key = SessionKey(turn.envelope.tenant, str(turn.envelope.session))
                step = sessions.arrive(self._book[key], turn, value, arrival.lane, max_parked=self._max_parked)
                self._apply(key, step, position, out)
            case Reroute() as decision:
                log.info("rerouted", to_partition=decision.partition)
                out.writes.append(self._outgoing.rerouted(decision, arrival))
                out.closes.append(position)
            case Refuse() as decision:
                self._refuse(decision, out)
                out.closes.append(position)

    def _refuse(self, decision: Refuse, out: Round) -> None:
        result = decision.result
        if self._is_known(result):
            # Its terminal record would be taken for that of the turn that runs or waits under the same id.
            log.warning("refused_repeat_ignored", request=result.request_id, session=result.session)
            return
        self._count(result)
        out.writes.append(self._outgoing.ended(decision.envelope, result))
        out.ended.append(result.status)
        if decision.dead_letter is not None:
            out.letters.append(Letter(decision.dead_letter, decision))

    def _is_known(self, result: Result) -> bool:
        if result.session is None:
            return False
        return self._book[SessionKey(result.tenant, result.session)].knows(result.request_id)

    def _result(self, record: ConsumerRecord, position: Position, now_ms: float, out: Round) -> None:
        result = self._decoded(record)
        if isinstance(result, DuplicateOf) and result.has_ended and result.session is not None:
            key = SessionKey(result.tenant, result.session)
            self._apply(key, sessions.end_repeat(self._book[key], result.request_id, now_ms=now_ms), position, out)
            return
        # What the gate itself has ended was never running, even if its id is running by now: it was sent again.
        if not isinstance(result, Result) or result.session is None or is_own(record.headers):
            out.done.append(position)
            return
        key = SessionKey(result.tenant, result.session)
        session = self._book[key]
        step = sessions.end(session, result, object_key=self._names.object_key, now_ms=now_ms)
        if step.session is session:
            out.done.append(position)
            return
        if result.status == "completed" and step.session.storing is None:
            log.error("completed_turn_unusable", request=result.request_id, session=result.session)
        self._apply(key, step, position, out)

    def _decoded(self, record: ConsumerRecord) -> ResultRecord | None:
        try:
            return RESULT.decode(record.value)
        except MalformedRecord as error:
            # No role of ours writes such a record, and no request can be read from it: there is nobody to answer.
            RECORDS_REFUSED.labels("gate", error.code).inc()
            log.error("result_unreadable", error=error.message)  # noqa: TRY400 (the message says where and what)
            return None

    def _apply(self, key: SessionKey, step: Step, position: Position | None, out: Round) -> None:
        """Turn a step's effects into records, and close `position` with them unless an object has to be put first.

        It is closed in the transaction also where nothing is written: that a repeat was seen must not be forgotten
        before what it repeated.
        """
        self._book[key] = step.session
        for effect in step.effects:
            if isinstance(effect, PutObject):
                if position is None:
                    raise TypeError("an object is put for a result, which has a position")
                out.puts.append(Put(effect, key, position))
                return
            if isinstance(effect, EndTurn):
                self._count(effect.result)
                out.ended.append(effect.result.status)
            if isinstance(effect, PointToLast):
                log.info("duplicate", request=effect.turn.envelope.request_id, session=key.session)
            out.writes.append(self._outgoing.effect(effect))
        if position is not None:
            out.closes.append(position)

    def _count(self, result: Result) -> None:
        code = result.error.code if result.error else result.status
        RECORDS_REFUSED.labels("gate", code).inc()
        log.info("refused", request=result.request_id, session=result.session, status=result.status, code=code)
