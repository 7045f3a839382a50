"""What the desk asks for, record by record: what is plain, what belongs into a transaction, what is simply done."""

from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from consumers.gate.book import SessionBook
from consumers.gate.desk import Desk
from consumers.gate.outgoing import is_own
from consumers.gate.round import Round
from consumers.transactor import OutRecord, Position
from runtime.kafka import partition_for
from runtime.tracing import Headers
from schemas.codec import RESULT, SESSION, TURN
from schemas.names import Names
from schemas.results import DuplicateOf, Result
from schemas.sessions import SessionState
from tests.consumers.gate.builders import (
    NOW_MS,
    NUM_PARTITIONS,
    RULES,
    TRACEPARENT,
    chat,
    encoded,
    forwarded,
    result_of,
)

NAMES = Names("headrace")
NUMBER = partition_for(b"s1", NUM_PARTITIONS)
WORKER: Headers = (("ce_source", b"headrace/worker"),)


class Counter:
    """A desk for the partition of session s1, and the records that are laid on it."""

    def __init__(self) -> None:
        self.desk = Desk(NAMES, NUMBER, SessionBook(), RULES, max_parked=2)
        self._offset = 10

    def lay(
        self, topic: str, value: bytes | None, *, key: bytes | None = b"s1", headers: Headers = ()
    ) -> tuple[Round, Position]:
        self._offset += 1
        size = len(value or b"")
        record = ConsumerRecord(topic, NUMBER, self._offset, NOW_MS, 1, key, value, None, 0, size, headers)
        out = Round()
        self.desk.record(record, NOW_MS, out)
        return out, Position(TopicPartition(topic, NUMBER), self._offset)

    def request(self, **fields: Any) -> tuple[Round, Position]:
        return self.lay(NAMES.requests(), encoded(chat(**{"session": "s1", **fields})))

    def result(self, result: Result | DuplicateOf, *, headers: Headers = WORKER) -> tuple[Round, Position]:
        return self.lay(NAMES.results, RESULT.encode(result), headers=headers)


@pytest.fixture
def counter() -> Counter:
    return Counter()


def topics(records: list[OutRecord]) -> list[str]:
    return [record.topic for record in records]


def plain_id() -> str:
    return next(name for n in range(99) if partition_for((name := f"r{n}").encode(), NUM_PARTITIONS) == NUMBER)


def needs_transaction(out: Round) -> bool:
    return bool(out.writes or out.closes or out.letters)


def test_a_plain_request_needs_no_transaction(counter: Counter) -> None:
    request_id = plain_id()
    out, position = counter.lay(NAMES.requests("bulk"), encoded(chat(id=request_id)), key=request_id.encode())
    (turn,) = out.plain
    assert turn.position == position
    assert (turn.record.topic, turn.record.partition) == (NAMES.turns("bulk"), NUMBER)
    assert turn.record.key == request_id.encode()
    assert TURN.decode(turn.record.value).envelope.request_id == request_id
    assert not needs_transaction(out)
    assert out.done == []


def test_a_session_turn_its_state_and_its_offset_belong_together(counter: Counter) -> None:
    out, position = counter.request(id="r1")
    assert topics(out.writes) == [NAMES.sessions, NAMES.turns()]
    assert {record.partition for record in out.writes} == {NUMBER}
    assert SESSION.decode(out.writes[0].value) == SessionState(session="s1", tenant="default", running="r1")
    assert out.closes == [position]


def test_a_refusal_and_its_dead_letter_belong_together(counter: Counter) -> None:
    headers = (("traceparent", TRACEPARENT.encode()),)
    out, position = counter.lay(NAMES.requests(), b"\xff", key=b"\xff", headers=headers)
    (record,) = out.writes
    assert (record.topic, record.partition) == (NAMES.results, NUMBER)
    assert dict(record.headers)["traceparent"] == TRACEPARENT.encode()
    assert dict(record.headers)["ce_type"] == b"headrace.result"
    assert [one.letter.value for one in out.letters] == [b"\xff"]
    assert (out.closes, out.ended) == ([position], ["failed"])


def test_a_rerouted_record_goes_to_its_own_topic(counter: Counter) -> None:
    value = encoded(chat(id="r1", session="s2"))
    out, position = counter.lay(NAMES.requests("bulk"), value, key=None)
    (record,) = out.writes
    right = partition_for(b"s2", NUM_PARTITIONS)
    assert record[:4] == (NAMES.requests("bulk"), right, b"s2", value)
    assert out.closes == [position]


def test_results_that_say_nothing_of_a_session_are_simply_done(counter: Counter) -> None:
    plain = result_of(forwarded("r9", session=None).turn)
    stray = result_of(forwarded("r9").turn)
    for out, position in [
        counter.result(plain),
        counter.result(stray),
        counter.result(DuplicateOf(request_id="r9")),
        counter.lay(NAMES.results, b"\xff"),
        counter.lay(NAMES.results, None),
    ]:
        assert out.done == [position]
        assert not needs_transaction(out)


def test_a_completed_turn_is_done_only_when_its_object_is_there(counter: Counter) -> None:
    counter.request(id="r1")
    out, position = counter.result(result_of(forwarded("r1").turn))
    (put,) = out.puts
    assert put.position == position
    assert not needs_transaction(out)
    assert out.done == []
    after = Round()
    counter.desk.object_put(put, NOW_MS, after)
    assert topics(after.writes) == [NAMES.sessions]
    assert after.closes == [position]


def test_a_repeat_is_closed_in_a_transaction_too(counter: Counter) -> None:
    """Else it could be delivered again after what it repeats is forgotten."""
    counter.request(id="r1")
    out, position = counter.request(id="r1")
    (said,) = out.writes
    assert RESULT.decode(said.value) == DuplicateOf(request_id="r1")
    assert (out.done, out.closes) == ([], [position])


def test_a_refused_repeat_of_a_running_turn_is_not_ended(counter: Counter) -> None:
    """A terminal record under the same id would be read as the end of the turn that runs."""
    counter.request(id="r1")
    counter.request(id="r2")
    for request_id in ("r1", "r2"):
        out, position = counter.request(id=request_id, temperature=99)
        assert [RESULT.decode(said.value) for said in out.writes] == [DuplicateOf(request_id=request_id)]
        assert (out.letters, out.closes) == ([], [position])


def test_what_the_gate_has_ended_itself_ends_no_running_turn(counter: Counter) -> None:
    """The id may have been sent again, and be running by the time that the gate reads its own refusal."""
    out, _ = counter.request(id="r1", temperature=99)
    (refusal,) = out.writes
    assert is_own(refusal.headers)
    counter.request(id="r1")
    seen, position = counter.lay(NAMES.results, refusal.value, headers=refusal.headers)
    assert seen.done == [position]
    (waiting, _), (released, _) = counter.request(id="r2"), counter.result(result_of(forwarded("r1").turn))
    assert topics(waiting.writes) == [NAMES.sessions]
    assert len(released.puts) == 1


def test_overdue_turns_end_when_time_passes(counter: Counter) -> None:
    counter.request(id="r1")
    counter.request(id="r2", ttl_s=5)
    assert counter.desk.num_parked == 1
    out = Round()
    counter.desk.time_passed(NOW_MS + 4_000, out)
    assert not needs_transaction(out)
    counter.desk.time_passed(NOW_MS + 5_000, out)
    assert topics(out.writes) == [NAMES.sessions, NAMES.results]
    assert (out.closes, out.ended) == ([], ["expired"])
    assert counter.desk.num_parked == 0
