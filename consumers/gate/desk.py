"""Decides what is delivered to one partition number, with its sessions at hand. No Kafka and no waiting in here."""

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from consumers.cancels import CancelOf, nobody_cancelled
from consumers.gate import sessions
from consumers.gate.admission import AdmissionRules, Deposit, Forward, Refuse, Reroute, admit
from consumers.gate.arrival import Arrival
from consumers.gate.book import SessionBook, SessionKey
from consumers.gate.deposits import Deposits, Held, Moved
from consumers.gate.effects import EndTurn, FetchContent, PointToFirst, PutObject
from consumers.gate.outgoing import Outgoing, is_own
from consumers.gate.refusals import cancelled, expired
from consumers.gate.round import Fetch, Letter, PlainTurn, Put, Round
from consumers.gate.sessions import Step
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

    def __init__(
        self,
        names: Names,
        number: int,
        book: SessionBook,
        rules: AdmissionRules,
        *,
        max_parked: int,
        cancel_of: CancelOf = nobody_cancelled,
    ) -> None:
        self._names = names
        self._cancel_of = cancel_of
        self._book = book
        self._rules = rules
        self._max_parked = max_parked
        self._outgoing = Outgoing(names, number)
        self._deposits = Deposits()

    @property
    def num_parked(self) -> int:
        """How many turns wait for their predecessor."""
        return self._book.num_parked

    @property
    def num_held_bytes(self) -> int:
        """What turns that wait for object storage take in memory."""
        return self._deposits.num_bytes

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

    def deposit_put(self, held: Held, out: Round) -> None:
        """Pass on a turn whose heavy fields are durable now, and what has waited behind it."""
        self._move(self._deposits.put(held), out)

    def result_fetched(self, fetch: Fetch, now_ms: float, out: Round) -> None:
        """Go on with a session whose running turn's result is whole now."""
        session, key = self._book[fetch.session], fetch.session
        step = sessions.fetched(session, fetch.result, object_key=self._names.object_key, now_ms=now_ms)
        self._apply(key, step, fetch.position, out)

    def time_passed(self, now_ms: float, out: Round) -> None:
        """End the turns whose deadline has come, or that were cancelled, while they were parked or held."""
        # The last first: what waits behind one that ends must not be passed on if it ends itself.
        for held in reversed(self._deposits.ending(now_ms, self._cancel_of)):
            self._end_held(held, out)
        for key in self._book.due(now_ms, self._cancel_of):
            step = sessions.end_early(self._book[key], now_ms=now_ms, cancel_of=self._cancel_of)
            self._apply(key, step, None, out)

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
            case Forward() | Deposit() as decision:
                self._move(self._deposits.add(Held(decision, arrival.lane, position)), out)
            case Reroute() as decision:
                log.info("rerouted", to_partition=decision.partition)
                out.writes.append(self._outgoing.rerouted(decision, arrival))
                out.closes.append(position)
            case Refuse() as decision:
                self._refuse(decision, out)
                out.closes.append(position)

    def _move(self, moved: Moved, out: Round) -> None:
        if moved.to_put is not None:
            out.deposits.append(moved.to_put)
        for held in moved.passed_on:
            if held.envelope.session is None:
                self._pass_on(held, out)
            else:
                self._arrive(held, held.envelope.session, out)

    def _pass_on(self, held: Held, out: Round) -> None:
        # Also one that was cancelled: only workers know whether it was passed on before, and how it ended then.
        record = self._outgoing.forwarded(held.decision, held.lane)
        if isinstance(held.decision, Forward):
            out.plain.append(PlainTurn(record, held.position))
            return
        # Its record may have been open for long, and may be ended here: so it is passed on and closed in one step.
        out.writes.append(record)
        out.closes.append(held.position)

    def _arrive(self, held: Held, session: str, out: Round) -> None:
        key = SessionKey(held.envelope.tenant, session)
        step = sessions.arrive(
            self._book[key],
            held.decision.turn,
            held.decision.value,
            held.lane,
            max_parked=self._max_parked,
            cancel_of=self._cancel_of,
        )
        self._apply(key, step, held.position, out)

    def _end_held(self, held: Held, out: Round) -> None:
        """End a turn that waits for object storage."""
        turn, cancel = held.decision.turn, self._cancel_of(held.envelope)
        moved = self._deposits.remove(held)
        out.dropped.append(held)
        result = expired(turn) if cancel is None else cancelled(turn, cancel)
        self._refuse(Refuse(held.envelope, result), out)
        out.closes.append(held.position)
        self._move(moved, out)

    def _refuse(self, decision: Refuse, out: Round) -> None:
        result = decision.result
        if self._deposits.find(decision.envelope) is not None:
            # It would be taken for that of the one that is held.
            self._say_repeated(decision, has_ended=False, out=out)
            return
        session = self._book[SessionKey(result.tenant, result.session)] if result.session is not None else None
        if session is not None and session.knows(result.request_id):
            # Its terminal record would be taken for that of the turn that runs, waits or has ended under the same id.
            self._say_repeated(decision, has_ended=session.has_ended(result.request_id), out=out)
            return
        self._count(result)
        out.writes.append(self._outgoing.ended(decision.envelope, result))
        out.ended.append(result.status)
        if decision.dead_letter is not None:
            out.letters.append(Letter(decision.dead_letter, decision))

    def _say_repeated(self, decision: Refuse, *, has_ended: bool, out: Round) -> None:
        log.warning("refused_repeat", request=decision.result.request_id, session=decision.result.session)
        out.writes.append(self._outgoing.repeat(decision.envelope, has_ended=has_ended))

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
            if isinstance(effect, FetchContent):
                if position is None:
                    raise TypeError("a result is fetched where it stands, at a position")
                out.fetches.append(Fetch(effect.result, key, position))
                return
            if isinstance(effect, EndTurn):
                self._count(effect.result)
                out.ended.append(effect.result.status)
            if isinstance(effect, PointToFirst):
                log.info("duplicate", request=effect.turn.envelope.request_id, session=key.session)
            out.writes.append(self._outgoing.effect(effect))
        if position is not None:
            out.closes.append(position)

    def _count(self, result: Result) -> None:
        code = result.error.code if result.error else result.status
        RECORDS_REFUSED.labels("gate", code).inc()
        log.info("refused", request=result.request_id, session=result.session, status=result.status, code=code)
