"""Sessions against a model of the log: any order of arrivals, results, puts, commits, crashes and time.

What is decided is written all or nothing, in the order of the decisions. A crash forgets what was not written; the next
owner rebuilds its sessions from the records and goes on at the committed offsets.
"""

from collections import Counter, deque
from itertools import cycle
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from consumers.gate.admission import AdmissionRules
from consumers.gate.book import rebuild
from consumers.gate.desk import Desk
from consumers.gate.progress import decode_progress, encode_progress
from consumers.gate.round import Put, Round
from consumers.transactor import Position
from runtime.kafka import partition_for
from runtime.ledger import Ledger
from runtime.tracing import Headers
from schemas.codec import RESULT, SESSION_TURN, TURN
from schemas.envelope import Status
from schemas.names import Names
from schemas.results import DuplicateOf, Result
from schemas.sessions import SessionTurn
from schemas.turns import Turn
from tests.consumers.gate.builders import NOW_MS, RULES, chat, encoded, result_of

NAMES = Names("model")
SESSIONS = ["s1", "s2"]
# The same session id of two tenants is two sessions.
TENANTS = ["default", "default", "acme"]
MAX_PARKED = 3
STATUSES: list[Status] = ["completed", "completed", "failed", "cancelled", "expired"]
# One partition number holds all sessions of the model.
ONE_PARTITION: AdmissionRules = RULES._replace(num_partitions=1)
REQUESTS = TopicPartition(NAMES.requests(), 0)
RESULTS = TopicPartition(NAMES.results, 0)


class Sent(NamedTuple):
    """What a client sent."""

    tenant: str
    session: str
    request_id: str


class Stood(NamedTuple):
    """A record as it stands on an input topic."""

    value: bytes
    headers: Headers = ()
    timestamp_ms: int = NOW_MS


class Decided(NamedTuple):
    """A round that is decided and not yet written."""

    out: Round


class GateModel(RuleBasedStateMachine):
    """The log outlives crashes; the gate does not."""

    admission_rules = ONE_PARTITION

    @initialize(
        statuses=st.lists(st.sampled_from(STATUSES), min_size=1, max_size=6),
        crashes=st.lists(st.booleans(), max_size=12),
        last_wait_s=st.sampled_from([1, 10]),
    )
    def begin(self, statuses: list[Status], crashes: list[bool], last_wait_s: int) -> None:
        """Draw also what happens in the last part, when everything is let run to its end."""
        self.last_wait_s = last_wait_s
        self.statuses = cycle(statuses)
        self.crashes = iter(crashes)
        self.log: dict[TopicPartition, list[Stood]] = {REQUESTS: [], RESULTS: []}
        self.sessions: list[tuple[bytes | None, bytes | None]] = []
        self.turns: list[Turn] = []
        self.objects: dict[str, SessionTurn] = {}
        self.committed = {REQUESTS: 0, RESULTS: 0}
        self.progress = {REQUESTS: "", RESULTS: ""}
        self.sent: list[Sent] = []
        self.resent: set[Sent] = set()
        self.answered: set[str] = set()
        self.now_ms = float(NOW_MS)
        self.start_gate()

    def start_gate(self) -> None:
        self.ledgers = {
            tp: Ledger(offset, decode_progress(self.progress[tp], offset)) for tp, offset in self.committed.items()
        }
        self.desk = Desk(NAMES, 0, rebuild(self.sessions), self.admission_rules, max_parked=MAX_PARKED)
        self.waiting: deque[Decided] = deque()
        self.puts: list[Put] = []

    # ---- clients and workers -----------------------------------------------------------------------------------------

    @rule(tenant=st.sampled_from(TENANTS), session=st.sampled_from(SESSIONS), ttl_s=st.sampled_from([5, 600]))
    def a_client_sends(self, tenant: str, session: str, ttl_s: int) -> None:
        request_id = f"r{len(self.sent)}"
        self.sent.append(Sent(tenant, session, request_id))
        body = chat(id=request_id, tenant=tenant, session=session, ttl_s=ttl_s)
        self.log[REQUESTS].append(Stood(encoded(body), timestamp_ms=int(self.now_ms)))

    @precondition(lambda self: self.sent)
    @rule(is_valid=st.booleans())
    def a_client_repeats_its_last_request(self, is_valid: bool) -> None:
        """Also with a body that is refused: the refusal must not be taken for the end of the turn."""
        sent = self.sent[-1]
        self.resent.add(sent)
        fields: dict[str, Any] = {} if is_valid else {"temperature": 99}
        body = chat(id=sent.request_id, tenant=sent.tenant, session=sent.session, ttl_s=600, **fields)
        self.log[REQUESTS].append(Stood(encoded(body), timestamp_ms=int(self.now_ms)))

    @precondition(lambda self: self.unanswered)
    @rule(status=st.sampled_from(STATUSES))
    def a_worker_answers(self, status: Status) -> None:
        turn = self.unanswered[0]
        self.answered.add(turn.envelope.request_id)
        base = sum(len(one.token_ids) for one in self.history(turn.base.object if turn.base else None))
        self.add_result(result_of(turn, status=status, base=base))

    @precondition(lambda self: self.answered)
    @rule(index=st.integers(0, 99), status=st.sampled_from(["completed", "failed"]))
    def a_worker_repeats_an_answer(self, index: int, status: Status) -> None:
        """A replaced worker's, or one for a request that the stateless stages delivered twice."""
        answered = [turn for turn in self.turns if turn.envelope.request_id in self.answered]
        turn = answered[index % len(answered)]
        self.add_result(result_of(turn, status=status))
        self.log[RESULTS].append(Stood(RESULT.encode(DuplicateOf(request_id=turn.envelope.request_id))))

    @rule(value=st.binary(max_size=5))
    def something_else_stands_on_results(self, value: bytes) -> None:
        self.log[RESULTS].append(Stood(value))

    # ---- the gate ----------------------------------------------------------------------------------------------------

    @rule(tp=st.sampled_from([REQUESTS, RESULTS]), num_records=st.integers(1, 4), commits=st.booleans())
    def the_gate_decides(self, tp: TopicPartition, num_records: int, commits: bool) -> None:
        out = Round()
        for _ in range(num_records):
            offset = self.ledgers[tp].next_offset
            if offset < len(self.log[tp]) and self.ledgers[tp].open(offset):
                self.desk.record(self.record(tp, offset), self.now_ms, out)
        self.decided(out)
        if commits:
            self.a_transaction_commits(len(self.waiting))

    @precondition(lambda self: self.puts)
    @rule(index=st.integers(0, 9), is_repeated=st.booleans())
    def an_object_is_put(self, index: int, is_repeated: bool) -> None:
        put = self.puts.pop(index % len(self.puts))
        content = SESSION_TURN.encode(put.effect.content)
        earlier = self.objects.get(put.effect.key)
        assert earlier is None or SESSION_TURN.encode(earlier) == content, "an object was changed"
        self.objects[put.effect.key] = SESSION_TURN.decode(content)
        if is_repeated:
            # A crash right after the put: the object is there, nobody knows.
            self.the_gate_crashes()
            return
        out = Round()
        self.desk.object_put(put, self.now_ms, out)
        self.decided(out)

    @rule(seconds=st.sampled_from([1, 10]))
    def time_passes(self, seconds: int) -> None:
        self.now_ms += seconds * 1000
        out = Round()
        self.desk.time_passed(self.now_ms, out)
        self.decided(out)

    @rule(num_rounds=st.integers(1, 3))
    def a_transaction_commits(self, num_rounds: int) -> None:
        for _ in range(min(num_rounds, len(self.waiting))):
            self.write(self.waiting.popleft().out)

    @rule()
    def the_gate_crashes(self) -> None:
        self.start_gate()

    # ---- what is promised --------------------------------------------------------------------------------------------

    @invariant()
    def turns_of_a_session_are_in_order_and_one_at_a_time(self) -> None:
        for key, turns in self.by_session().items():
            ids = [turn.envelope.request_id for turn in turns]
            assert len(set(ids)) == len(ids), f"a turn of {key} was forwarded twice: {ids}"
            in_order = [sent.request_id for sent in self.sent if (sent.tenant, sent.session) == key]
            assert ids == [one for one in in_order if one in ids], f"{key} is out of order: {ids}"
            assert set(ids[:-1]) <= self.answered, f"a turn of {key} was forwarded while another ran: {ids}"

    @invariant()
    def every_turn_is_built_on_all_successes_before_it(self) -> None:
        first = self.first_answers()
        for turns in self.by_session().values():
            wins: list[str] = []
            for turn in turns:
                history = self.history(turn.base.object if turn.base else None)
                assert [one.request_id for one in history] == wins
                assert turn.envelope.turn == len(wins) + 1
                tokens = [token for one in history for token in one.token_ids]
                assert len(tokens) == 6 * len(wins), "each turn adds four ids of the prompt and two of the answer"
                result = first.get(turn.envelope.request_id)
                if result is not None and result.status == "completed":
                    wins.append(turn.envelope.request_id)

    @invariant()
    def parking_is_bounded(self) -> None:
        assert self.desk.num_parked <= MAX_PARKED * len(SESSIONS) * len(TENANTS)

    def teardown(self) -> None:
        """Let everything finish: each request has exactly one terminal record, and no session is stuck."""
        if not hasattr(self, "log"):
            return
        self.time_passes(self.last_wait_s)
        while self.step_towards_the_end():
            self.turns_of_a_session_are_in_order_and_one_at_a_time()
        self.every_turn_is_built_on_all_successes_before_it()
        ended_by = Counter(result.request_id for result in self.results() if result.hashes is None)
        for sent in self.sent:
            num_ends = ended_by[sent.request_id] + (sent.request_id in self.answered)
            # Who sends an id again that the gate has refused asks anew, and is answered anew.
            assert num_ends == 1 or (num_ends > 1 and sent in self.resent), f"{num_ends} ends of {sent.request_id}"
        assert self.desk.num_parked == 0
        assert all(ledger.num_open == 0 for ledger in self.ledgers.values())

    def step_towards_the_end(self) -> bool:
        for tp in (REQUESTS, RESULTS):
            self.the_gate_decides(tp, 1_000, commits=False)
            self.maybe_crash()
        while self.puts:
            self.an_object_is_put(0, is_repeated=False)
            self.maybe_crash()
        while self.waiting:
            self.a_transaction_commits(1)
            self.maybe_crash()
        while self.unanswered:
            self.a_worker_answers(next(self.statuses))
        return self.is_busy

    def maybe_crash(self) -> None:
        if next(self.crashes, False):
            self.the_gate_crashes()

    @property
    def is_busy(self) -> bool:
        unread = sum(len(log) - self.ledgers[tp].next_offset for tp, log in self.log.items())
        return bool(unread or self.waiting or self.puts or self.unanswered)

    # ---- helpers -----------------------------------------------------------------------------------------------------

    @property
    def unanswered(self) -> list[Turn]:
        return [turn for turn in self.turns if turn.envelope.request_id not in self.answered]

    def add_result(self, result: Result) -> None:
        self.log[RESULTS].append(Stood(RESULT.encode(result)))

    def decided(self, out: Round) -> None:
        assert not out.plain
        assert not out.letters
        for position in out.done:
            self.ledgers[position.tp].close(position.offset)
        self.puts += out.puts
        self.waiting.append(Decided(out))

    def write(self, out: Round) -> None:
        """One transaction: all of it, and the offsets up to the first record that is not done."""
        for record in out.writes:
            assert record.partition == 0
            if record.topic == NAMES.sessions:
                self.sessions.append((record.key, record.value))
            elif record.topic == NAMES.turns():
                assert record.value is not None
                self.turns.append(TURN.decode(record.value))
            else:
                assert record.topic == NAMES.results
                assert record.value is not None
                self.log[RESULTS].append(Stood(record.value, tuple(record.headers)))
        for position in out.closes:
            self.close(position)
        for tp in {position.tp for position in out.closes}:
            self.committed[tp] = self.ledgers[tp].committable
            self.progress[tp] = encode_progress(self.ledgers[tp].holes(), self.committed[tp])

    def close(self, position: Position) -> None:
        self.ledgers[position.tp].close(position.offset)

    def record(self, tp: TopicPartition, offset: int) -> "ConsumerRecord[bytes, bytes]":
        value, headers, timestamp_ms = self.log[tp][offset]
        key = None
        if tp == REQUESTS:
            key = self.key_of(value)
            assert partition_for(key, 1) == 0
        return ConsumerRecord(tp.topic, 0, offset, timestamp_ms, 1, key, value, None, 0, len(value), headers)

    def key_of(self, value: bytes) -> bytes:
        return next(name.encode() for name in SESSIONS if f'"session": "{name}"'.encode() in value)

    def by_session(self) -> dict[tuple[str, str], list[Turn]]:
        found: dict[tuple[str, str], list[Turn]] = {}
        for turn in self.turns:
            found.setdefault((turn.envelope.tenant, str(turn.envelope.session)), []).append(turn)
        return found

    def results(self) -> list[Result]:
        return [one for value, *_ in self.log[RESULTS] if isinstance(one := self.decoded(value), Result)]

    def decoded(self, value: bytes) -> object:
        return RESULT.decode(value) if value.startswith(b'{"schema"') else None

    def first_answers(self) -> dict[str, Result]:
        """The first result of a worker for each id; those of the gate itself have no hashes."""
        first: dict[str, Result] = {}
        for result in self.results():
            if result.hashes is not None:
                first.setdefault(result.request_id, result)
        return first

    def history(self, key: str | None) -> list[SessionTurn]:
        if key is None:
            return []
        newest = self.objects[key]
        return [*self.history(newest.parent), newest]


TestGateModel = GateModel.TestCase
TestGateModel.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
