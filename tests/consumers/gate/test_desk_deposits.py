"""What the desk does with requests that wait for object storage, and with those that come meanwhile."""

from typing import Any

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from consumers.cancels import CancelBook
from consumers.gate.admission import AdmissionRules
from consumers.gate.book import SessionBook
from consumers.gate.desk import Desk
from consumers.gate.round import Round
from consumers.transactor import OutRecord, Position
from schemas.codec import RESULT, TURN
from schemas.control import Cancel
from schemas.names import Names
from schemas.results import Result
from tests.consumers.gate.builders import NOW_MS, RULES, chat, encoded

NAMES = Names()
ONE_PARTITION: AdmissionRules = RULES._replace(num_partitions=1, max_inline_bytes=2_000)
PAD = {"pad": "x" * 10_000}


class Counter:
    """A desk for the only partition, and the requests that are laid on it. Position n is that of the n-th."""

    def __init__(self) -> None:
        self.cancels = CancelBook(86_400.0)
        self.desk = Desk(NAMES, 0, SessionBook(), ONE_PARTITION, max_parked=9, cancel_of=self.cancels.find)
        self._offset = -1

    def request(self, request_id: str, *, session: str | None = None, **fields: Any) -> Round:
        self._offset += 1
        value = encoded(chat(id=request_id, **({"session": session} if session else {}), **fields))
        key = (session or request_id).encode()
        record = ConsumerRecord(NAMES.requests(), 0, self._offset, NOW_MS, 1, key, value, None, 0, len(value), ())
        out = Round()
        self.desk.record(record, NOW_MS, out)
        return out

    def put(self, begun: Round) -> Round:
        (held,) = begun.deposits
        out = Round()
        self.desk.deposit_put(held, out)
        return out

    def later(self, seconds: float) -> Round:
        out = Round()
        self.desk.time_passed(NOW_MS + 1000 * seconds, out)
        return out


def turns(records: list[OutRecord]) -> list[str]:
    return [TURN.decode(one.value).envelope.request_id for one in records if one.topic == NAMES.turns()]


def ends(records: list[OutRecord]) -> list[tuple[str, str]]:
    results = [RESULT.decode(one.value) for one in records if one.topic == NAMES.results]
    return [(one.request_id, one.status) for one in results if isinstance(one, Result)]


def closed(out: Round) -> list[int]:
    assert all(position.tp == TopicPartition(NAMES.requests(), 0) for position in out.closes)
    return [position.offset for position in out.closes]


def test_nothing_is_written_of_a_large_request_before_its_object_is_there() -> None:
    counter = Counter()
    begun = counter.request("r1", metadata=PAD)
    assert (begun.writes, begun.plain, begun.closes, begun.done) == ([], [], [], [])
    assert counter.desk.num_held_bytes > 10_000
    out = counter.put(begun)
    # In one step with its input: it may have waited for long, and must not be decided again.
    assert (turns(out.writes), closed(out), out.plain) == (["r1"], [0], [])
    assert counter.desk.num_held_bytes == 0


def test_what_has_the_same_key_waits_behind_it_and_all_else_goes_on() -> None:
    counter = Counter()
    first = counter.request("r1", session="s1", metadata=PAD)
    assert counter.request("r2", session="s1").writes == []
    assert counter.request("r3", session="s1", metadata=PAD).deposits == []
    assert turns(counter.request("r4", session="s2").writes) == ["r4"]
    assert turns(counter.request("r5", session="s1", tenant="acme").writes) == ["r5"]
    assert len(counter.request("r6").plain) == 1
    out = counter.put(first)
    # The first runs, the second is parked, the third has its turn to be put.
    assert (turns(out.writes), closed(out)) == (["r1"], [0, 1])
    assert [held.envelope.request_id for held in out.deposits] == ["r3"]
    assert closed(counter.put(out)) == [2]
    assert counter.desk.num_parked == 2


def test_a_request_that_waits_ends_at_its_deadline_and_what_is_behind_goes_on() -> None:
    counter = Counter()
    first = counter.request("r1", session="s1", metadata=PAD, ttl_s=5)
    counter.request("r2", session="s1", ttl_s=5)
    counter.request("r3", session="s1")
    assert counter.later(4).writes == []
    out = counter.later(5)
    assert sorted(ends(out.writes)) == [("r1", "expired"), ("r2", "expired")]
    assert turns(out.writes) == ["r3"]
    assert sorted(closed(out)) == [0, 1, 2]
    assert [held.envelope.request_id for held in out.dropped] == ["r2", "r1"]
    # Its object comes too late.
    late = counter.put(first)
    assert (late.writes, late.closes) == ([], [])


def test_a_request_that_waits_ends_when_it_is_cancelled() -> None:
    counter = Counter()
    counter.request("r1", metadata=PAD)
    counter.cancels.note(Cancel(request_id="r1", tenant="acme"), NOW_MS)
    assert counter.later(1).writes == []
    counter.cancels.note(Cancel(request_id="r1"), NOW_MS)
    out = counter.later(1)
    assert (ends(out.writes), closed(out)) == ([("r1", "cancelled")], [0])


def test_the_same_id_sent_again_while_it_waits_gives_no_second_end() -> None:
    counter = Counter()
    counter.request("r1", metadata=PAD, ttl_s=5)
    refused = counter.request("r1", temperature=99)
    assert (ends(refused.writes), closed(refused)) == ([], [1])
    counter.request("r1", metadata=PAD, ttl_s=5)
    out = counter.later(5)
    assert ends(out.writes) == [("r1", "expired")]
    assert sorted(closed(out)) == [0, 2]


def test_a_position_is_all_that_tells_one_deposit_from_another() -> None:
    counter = Counter()
    first, second = counter.request("r1", metadata=PAD), counter.request("r1", metadata=PAD)
    assert second.deposits == []
    out = counter.put(first)
    assert [held.position for held in out.deposits] == [Position(TopicPartition(NAMES.requests(), 0), 1)]
    assert counter.put(first).writes == []
    assert turns(counter.put(out).writes) == ["r1"]
