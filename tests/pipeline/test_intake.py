"""Records in, records out, with real preparation and a producer whose acknowledgements are immediate."""

import asyncio
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture
from structlog.typing import Processor

from pipeline.claims import Claims
from pipeline.history import SessionHistory
from pipeline.intake import InputRecord, Intake
from pipeline.outbox import MAX_RECORDS
from pipeline.pack import Packed
from pipeline.stage import Stage
from pipeline.tokenize import PromptPool
from pipeline.turn_claims import TurnClaims
from pipeline.watchdog import Watchdog
from runtime.claims import ClaimStore
from runtime.headers import record_headers
from schemas.batches import Member, Refusal
from schemas.claims import ClaimCheck
from schemas.codec import BATCH, TURN
from schemas.names import Lane, Names
from schemas.requests import ChatRequest
from schemas.settings import ModelSettings, Settings, TopicsSettings
from schemas.turns import BaseTurn, Turn
from tests.pipeline.builders import chat, envelope, turn
from tests.pipeline.conftest import HANG
from tests.pipeline.test_history import Storage
from tests.pipeline.test_stage import no_claims

NAMES = Names("n")
SETTINGS = Settings(models={"tiny": ModelSettings(path="tiny.gguf")}, topics=TopicsSettings(namespace="n"))


class Client:
    """What stands for the Kafka client around an intake: it takes records, and acknowledges all that is sent."""

    def __init__(self, stage: Stage) -> None:
        self.claims = Claims()
        self.sent: list[tuple[Packed, int]] = []
        self.has_sent = asyncio.Event()
        self.held: list[Any] = []
        self.failures: list[BaseException] = []
        self.intake = Intake(SETTINGS, stage, self.send, brake=self, fail=self.failures.append)
        self.next_offset: dict[tuple[str, int], int] = {}

    async def send(self, record: Packed, partition: int) -> "asyncio.Future[Any]":
        acknowledged: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        acknowledged.set_result(None)
        self.sent.append((record, partition))
        self.has_sent.set()
        return acknowledged

    def hold(self, partition: Any) -> None:
        self.held.append(partition)

    def release(self, partition: Any) -> None:
        self.held.remove(partition)

    def deliver(
        self,
        value: bytes | None,
        *,
        key: bytes | None = b"k",
        headers: list[tuple[str, bytes]] | None = None,
        partition: int = 0,
        lane: Lane = "interactive",
    ) -> None:
        name = (NAMES.turns(lane), partition)
        offset = self.next_offset.get(name, 0)
        self.next_offset[name] = offset + 1
        if offset == 0:
            self.claims.renew(name, 0)
        record = InputRecord(
            claim=self.claims.take({name: [_Record(offset)]})[name][0].claim,
            offset=offset,
            timestamp_ms=1_000,
            key=key,
            value=value,
            headers=headers or [],
        )
        self.intake.take(record)

    def committable(self) -> dict[tuple[str, int], int | None]:
        return {claim.partition: claim.to_commit() for claim in self.claims.current()}

    @property
    def members(self) -> list[Member]:
        return [member for record, _ in self.sent for member in BATCH.decode(record.value).members]


class _Record:
    def __init__(self, offset: int) -> None:
        self.offset = offset


@pytest.fixture
def client(pool: PromptPool) -> Client:
    return Client(Stage(SETTINGS, pool, SessionHistory(Storage({}), max_turns=10), no_claims(pool)))


def encoded(request_id: str, request: ChatRequest | None = None, **changes: Any) -> bytes:
    return TURN.encode(turn(request or chat(request_id, model="tiny"), request_id, **changes))


async def test_turns_of_a_partition_come_out_in_order_and_in_the_same_partition(client: Client) -> None:
    for i in range(40):
        client.deliver(encoded(f"r-{i}"), partition=i % 2)
    await client.intake.drain()
    for partition in (0, 1):
        members = [m for record, p in client.sent if p == partition for m in BATCH.decode(record.value).members]
        assert [m.envelope.request_id for m in members] == [f"r-{i}" for i in range(partition, 40, 2)]
    assert set(client.committable().values()) == {20}


async def test_each_lane_goes_to_its_own_topic_and_so_does_what_is_refused(client: Client) -> None:
    client.deliver(encoded("plain"))
    client.deliver(encoded("bulk"), lane="bulk")
    client.deliver(encoded("unknown", chat(model="gpt-9")))
    client.deliver(encoded("unknown-bulk", chat(model="gpt-9")), lane="bulk")
    client.deliver(encoded("too-long", chat("x" * 1000, model="tiny")))
    await client.intake.drain()
    topics = {
        m.envelope.request_id: record.topic for record, _ in client.sent for m in BATCH.decode(record.value).members
    }
    assert topics == {
        "plain": "n.batches.tiny",
        "bulk": "n.batches.tiny.bulk",
        "unknown": "n.batches.none",
        "unknown-bulk": "n.batches.none.bulk",
        "too-long": "n.batches.tiny",
    }


@pytest.mark.parametrize("value", [None, b"", b"\xff\xfe{", b"{}", TURN.encode(turn())[:-3]])
async def test_a_record_that_cannot_be_read_is_logged_with_its_place_and_the_partition_goes_on(
    client: Client, value: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = LogCapture()
    # As `runtime.logging` does it: what is bound to the context belongs to the line.
    processors: list[Processor] = [structlog.contextvars.merge_contextvars, written]
    monkeypatch.setattr("pipeline.intake.log", structlog.wrap_logger(structlog.PrintLogger(), processors=processors))
    client.deliver(encoded("r-0"))
    client.deliver(value)
    client.deliver(encoded("r-2"))
    await client.intake.drain()
    assert [m.envelope.request_id for m in client.members] == ["r-0", "r-2"]
    assert set(client.committable().values()) == {3}
    (line,) = written.entries
    assert (line["log_level"], line["topic"], line["partition"], line["offset"]) == ("error", "n.turns", 0, 1)


async def test_a_record_that_cannot_be_read_still_ends_the_request_that_its_headers_name(client: Client) -> None:
    client.deliver(b"\xff", key=b"s-1", headers=record_headers("turn", envelope("r-9"), source="gate"))
    await client.intake.drain()
    (member,) = client.members
    assert isinstance(member, Refusal)
    assert (member.envelope.request_id, member.envelope.session, member.error.code) == (
        "r-9",
        "s-1",
        "malformed_record",
    )
    assert client.sent[0][0].topic == "n.batches.none"


async def test_one_turn_that_hangs_is_refused_and_those_behind_it_follow(client: Client) -> None:
    client.deliver(encoded("r-0", chat(HANG, model="tiny")))
    client.deliver(encoded("r-1"))
    await client.intake.drain()
    assert [(m.envelope.request_id, isinstance(m, Refusal)) for m in client.members] == [("r-0", True), ("r-1", False)]


class Waiting(Stage):
    """A stage whose turns of sessions wait, as they do when object storage is away."""

    def __init__(self, pool: PromptPool) -> None:
        super().__init__(SETTINGS, pool, SessionHistory(Storage({}), max_turns=1), no_claims(pool))
        self.is_back = asyncio.Event()

    async def member(self, turn: Turn, lane: Lane, *, seconds_left: float | None = None) -> Member:
        if turn.base is not None:
            await self.is_back.wait()
            turn = Turn(envelope=turn.envelope, request=turn.request)
        return await super().member(turn, lane, seconds_left=seconds_left)


async def test_a_partition_that_waits_for_storage_holds_up_no_other_and_is_not_read_on_for_ever(
    pool: PromptPool,
) -> None:
    stage = Waiting(pool)
    client = Client(stage)
    client.deliver(encoded("r-0", session="s-1", base=BaseTurn(turn=1, object="t1")))
    for i in range(1, MAX_RECORDS):
        client.deliver(encoded(f"r-{i}"))
    assert client.held == [("n.turns", 0)]
    client.deliver(encoded("other"), partition=1)
    await client.has_sent.wait()
    assert [m.envelope.request_id for m in client.members] == ["other"]
    stage.is_back.set()
    await client.intake.drain()
    assert [m.envelope.request_id for m in client.members[1:]] == [f"r-{i}" for i in range(MAX_RECORDS)]
    assert client.held == []


async def test_what_belongs_to_a_void_claim_is_neither_taken_nor_sent(pool: PromptPool) -> None:
    stage = Waiting(pool)
    client = Client(stage)
    client.deliver(encoded("r-0", session="s-1", base=BaseTurn(turn=1, object="t1")))
    (claim,) = client.claims.current()
    client.claims.give_up([claim.partition])
    client.intake.give_up([claim.partition])
    client.intake.take(InputRecord(claim=claim, offset=1, timestamp_ms=0, key=b"k", value=encoded("r-1"), headers=[]))
    stage.is_back.set()
    assert client.intake.num_open == 0
    client.deliver(encoded("r-2"), partition=1)
    await client.intake.drain()
    assert [m.envelope.request_id for m in client.members] == ["r-2"]


async def test_a_record_that_never_reaches_the_intake_is_noticed_after_a_while(client: Client) -> None:
    name = (NAMES.turns(), 0)
    client.claims.renew(name, 0)
    client.claims.take({name: [_Record(0)]})
    watchdog = Watchdog(client.intake, limit_s=30.0)
    assert watchdog.look(client.claims.current(), 100.0) is None
    assert watchdog.look(client.claims.current(), 129.0) is None
    assert watchdog.look(client.claims.current(), 131.0) == (name, 0)
    for claim in client.claims.current():
        claim.close([0])
    assert watchdog.look(client.claims.current(), 200.0) is None


async def test_a_record_that_waits_in_the_intake_is_not_lost(pool: PromptPool) -> None:
    client = Client(Waiting(pool))
    client.deliver(encoded("r-0", session="s-1", base=BaseTurn(turn=1, object="t1")))
    watchdog = Watchdog(client.intake, limit_s=30.0)
    assert [watchdog.look(client.claims.current(), now_s) for now_s in (0.0, 100.0)] == [None, None]
    client.intake.give_up_all()


class _NoAnswer(Storage):
    """An object storage that takes calls, and never answers."""

    async def get(self, key: str, *, max_bytes: int | None = None) -> bytes:
        never: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        return await never


@pytest.mark.parametrize("waits_for", ["its session", "its claim"])
async def test_a_turn_that_waits_for_storage_ends_at_its_deadline_and_those_behind_it_follow(
    pool: PromptPool, waits_for: str
) -> None:
    storage = _NoAnswer({})
    claims = TurnClaims(ClaimStore(storage), NAMES, pool)
    client = Client(Stage(SETTINGS, pool, SessionHistory(storage, max_turns=1), claims))
    # Records here are of the broker's time 1,000.
    if waits_for == "its session":
        client.deliver(encoded("r-0", session="s-1", base=BaseTurn(turn=1, object="t1"), deadline_ms=1_050))
    else:
        claim = ClaimCheck(object="o", sha256="0" * 64, num_bytes=2)
        client.deliver(encoded("r-0", ChatRequest(model="tiny", claim=claim), deadline_ms=1_050))
    client.deliver(encoded("r-1"))
    await client.intake.drain()
    late, after = client.members
    assert isinstance(late, Refusal)
    assert (late.envelope.request_id, late.error.code) == ("r-0", "deadline_exceeded")
    assert (after.envelope.request_id, isinstance(after, Refusal)) == ("r-1", False)
