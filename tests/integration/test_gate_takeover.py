"""Gates that come, go and die: every request is forwarded, every turn of a session exactly once and in order."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from random import Random

import msgspec
import pytest
from aiokafka import TopicPartition

from consumers.gate.takeover import read_to_end
from headrace.local.background import BackgroundStack
from runtime.kafka import make_producer
from schemas.settings import KafkaSettings, Settings, StorageSettings, TopicsSettings
from tests.consumers.gate.builders import chat
from tests.consumers.gate.door import Door
from tests.consumers.gate.live import GateProcess, Outside

pytestmark = pytest.mark.integration

# A killed gate stays in its group for so long; no test may depend on it being short.
SESSION_TIMEOUT_MS = 2_000


@pytest.fixture
def settings(stack: BackgroundStack, namespace: str) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=stack.bootstrap_servers, session_timeout_ms=SESSION_TIMEOUT_MS),
        storage=stack.s3,
        topics=TopicsSettings(namespace=namespace, partitions=4),
    )


@pytest.fixture
async def outside(settings: Settings) -> AsyncIterator[Outside]:
    async with Outside(settings) as running:
        yield running


def ids_of(outside: Outside, session: str) -> list[str]:
    """The turns of a session in the order in which they were forwarded."""
    return [turn.envelope.request_id for turn in outside.turns if turn.envelope.session == session]


def assert_built_on_all_before(outside: Outside, session: str) -> None:
    """Every turn of a session whose turns all complete is the next one, on the object of the one before."""
    previous = None
    for number, turn in enumerate((one for one in outside.turns if one.envelope.session == session), start=1):
        assert turn.envelope.turn == number
        assert (turn.base is None) == (previous is None)
        if turn.base is not None:
            assert turn.base.turn == number - 1
            assert turn.base.object.endswith(f"/{number - 1:06d}-{previous}.json")
        previous = turn.envelope.request_id


async def test_a_gate_killed_between_any_two_steps_forwards_each_turn_once_and_in_order(
    settings: Settings, outside: Outside
) -> None:
    """Killed after a turn ran, after one was parked, while an object is put, after it was put, after the last."""
    ids = ["r1", "r2", "r3"]
    async with Door(str(settings.storage.endpoint)) as door:
        behind = msgspec.structs.replace(settings.storage, endpoint=door.endpoint, timeout_s=1.0)
        gated = msgspec.structs.replace(settings, storage=behind)
        async with GateProcess(gated) as gate:
            await outside.send(chat(id="r1", session="s1"))
            first = await outside.turn("r1")
            await gate.kill()
        async with GateProcess(gated) as gate:
            for request_id in ids[1:]:
                await outside.send(chat(id=request_id, session="s1"))
            await outside.wait_for(lambda: b"default/s1#1" in outside.session_records())
            await gate.kill()
        async with GateProcess(gated) as gate:
            door.shut()
            await outside.answer(first)
            await gate.logged("session_waits_for_storage")
            await gate.kill()
        door.open()
        async with GateProcess(gated) as gate:
            second = await outside.turn("r2")
            await gate.kill()
        async with GateProcess(gated) as gate:
            await outside.answer(second)
            await outside.answer(await outside.turn("r3"))
            await outside.wait_for(lambda: outside.state_of("s1").turn == 3)
            await gate.kill()
        async with GateProcess(gated) as gate:
            await outside.send(chat(id="r4", session="s1"))
            await outside.turn("r4")
            assert await gate.terminate() == 0
    assert ids_of(outside, "s1") == [*ids, "r4"]
    assert_built_on_all_before(outside, "s1")


class Traffic:
    """Requests of all kinds: plain ones, broken ones, sessions whose every turn is answered."""

    NUM_TURNS = 6

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.sessions = {f"s{one}": [f"s{one}-{turn}" for turn in range(self.NUM_TURNS)] for one in range(8)}
        self.plain = [f"plain{number}" for number in range(60)]
        self.bad = [f"bad{number}" for number in range(20)]

    async def send(self) -> None:
        for number, request_id in enumerate(self.plain):
            await self._outside.send(chat(id=request_id))
            if number % 3 == 0:
                await self._outside.send(chat(id=self.bad[number // 3], n=0))
            if number % 10 == 0:
                for session, ids in self.sessions.items():
                    await self._outside.send(chat(id=ids[number // 10], session=session))

    async def answer(self) -> None:
        for number in range(self.NUM_TURNS):
            for ids in self.sessions.values():
                await self._outside.answer(await self._outside.turn(ids[number]))

    async def end(self) -> None:
        """Wait until everything has come through."""
        outside = self._outside
        await outside.wait_for(lambda: {turn.envelope.request_id for turn in outside.turns} >= set(self.plain))
        for request_id in self.bad:
            await outside.result(request_id)
        await outside.wait_for(lambda: all(outside.state_of(one).turn == self.NUM_TURNS for one in self.sessions))

    def check(self) -> None:
        for session, ids in self.sessions.items():
            assert ids_of(self._outside, session) == ids
            assert_built_on_all_before(self._outside, session)
        # A refusal is written in a transaction with its offset: one terminal record, whenever a gate was killed.
        counts = {request_id: len(self._outside.results_of(request_id)) for request_id in self.bad}
        assert counts == dict.fromkeys(self.bad, 1)


async def test_gates_killed_at_any_moment_lose_double_and_reorder_nothing(settings: Settings, outside: Outside) -> None:
    traffic = Traffic(outside)
    random = Random(7)
    work = asyncio.gather(traffic.send(), traffic.answer())
    num_kills = 0
    while not work.done() or num_kills < 3:
        async with GateProcess(settings) as gate:
            await gate.settled(4)
            # A moment that has nothing to do with what the gate does: that is the point.
            await asyncio.wait([work], timeout=random.uniform(0.05, 1.0))
            await gate.kill()
            num_kills += 1
    await work
    async with GateProcess(settings) as gate:
        await traffic.end()
        assert await gate.terminate() == 0
    assert await outside.lag() == 0
    traffic.check()


async def test_of_two_gates_one_can_leave_and_nothing_is_lost(settings: Settings, outside: Outside) -> None:
    sessions = [f"s{number}" for number in range(6)]
    async with GateProcess(settings) as stays, GateProcess(settings) as leaves:
        await stays.settled(2)
        await leaves.settled(2)
        sent = 0
        for turn_number in range(4):
            for session in sessions:
                await outside.send(chat(id=f"{session}-{turn_number}", session=session))
            for _ in range(20):
                await outside.send(chat(id=f"plain{sent}"))
                sent += 1
            if turn_number == 1:
                assert await leaves.terminate() == 0
            for session in sessions:
                await outside.answer(await outside.turn(f"{session}-{turn_number}"))
        await outside.wait_for(lambda: all(outside.state_of(session).turn == 4 for session in sessions))
        wanted = {f"plain{number}" for number in range(sent)}
        await outside.wait_for(lambda: {turn.envelope.request_id for turn in outside.turns} >= wanted)
        assert await stays.terminate() == 0
    assert await outside.lag() == 0
    for session in sessions:
        assert ids_of(outside, session) == [f"{session}-{number}" for number in range(4)]


async def test_a_gate_that_was_frozen_and_wakes_up_harms_nobody(settings: Settings, outside: Outside) -> None:
    """It does not know yet that its partitions have another owner, and has work in hand."""
    sessions = [f"s{number}" for number in range(8)]

    async def play(turn_number: int) -> None:
        for session in sessions:
            await outside.send(chat(id=f"{session}-{turn_number}", session=session))
        for session in sessions:
            await outside.answer(await outside.turn(f"{session}-{turn_number}"))

    async with GateProcess(settings) as frozen, GateProcess(settings) as other:
        await frozen.settled(2)
        await other.settled(2)
        await play(0)
        frozen.process.send_signal(signal.SIGSTOP)
        await other.settled(4)
        await play(1)
        frozen.process.send_signal(signal.SIGCONT)
        await play(2)
        await other.settled(2)
        await play(3)
        assert await frozen.terminate() == 0
        await play(4)
        assert await other.terminate() == 0
    for session in sessions:
        assert ids_of(outside, session) == [f"{session}-{number}" for number in range(5)]
        assert_built_on_all_before(outside, session)


async def test_a_partition_that_is_kept_goes_on_where_it_was(settings: Settings, outside: Outside) -> None:
    """An eager rebalance undoes the pause of kept partitions and delivers from the committed offset again."""
    async with GateProcess(settings) as stays:
        await stays.settled(4)
        for number in range(4):
            await outside.send(chat(id=outside.id_in(number)))
            await outside.send(chat(id=f"s{number}-1", session=f"s{number}"))
        for number in range(4):
            await outside.turn(outside.id_in(number))
            await outside.turn(f"s{number}-1")
        async with GateProcess(settings) as other:
            await other.settled(2)
            await stays.settled(2)
            kept = stays.partitions
            assert await other.terminate() == 0
        await stays.settled(4)
        for number in range(4):
            await outside.send(chat(id=f"late{number}"))
            await outside.turn(f"late{number}")
        assert await stays.terminate() == 0
    # What moved may come to its new owner again, where it is plain; what was kept is known.
    counts = Counter(
        one.key for topic in (outside.names.turns(),) for one in outside.of(topic) if one.partition in kept
    )
    assert set(counts.values()) == {1}
    assert all(ids_of(outside, f"s{number}") == [f"s{number}-1"] for number in range(4))


async def fence(settings: Settings, outside: Outside, number: int) -> None:
    """Start a producer with the transactional id of a partition number, as another owner would."""
    names = outside.names
    transactional_id = names.transactional_id(names.gate_group, names.requests(), number)
    producer = make_producer(settings.kafka, transactional_id=transactional_id)
    await producer.start()
    await producer.stop()


async def test_a_gate_that_was_fenced_takes_its_partition_over_anew_and_gives_up_the_second_time(
    settings: Settings, outside: Outside
) -> None:
    async with GateProcess(settings) as gate:
        await gate.settled(4)
        number = outside.partition_of("s1")
        await outside.send(chat(id="r1", session="s1"))
        first = await outside.turn("r1")
        await fence(settings, outside, number)
        await outside.answer(first)
        await gate.logged('"fenced"')
        await outside.send(chat(id="r2", session="s1"))
        assert (await outside.turn("r2")).base is not None
        await fence(settings, outside, number)
        await outside.send(chat(id="r3", session="s1"))
        assert await gate.ended() == 1
    assert ids_of(outside, "s1") == ["r1", "r2"]
    async with GateProcess(settings) as gate:
        await outside.answer(await outside.turn("r2"))
        await outside.turn("r3")
        assert await gate.terminate() == 0
    assert ids_of(outside, "s1") == ["r1", "r2", "r3"]


async def test_a_partition_that_was_away_and_came_back_is_read_anew(settings: Settings, outside: Outside) -> None:
    """Kept, as the group tells it; but somebody was between, and what is remembered of sessions may be old."""
    async with GateProcess(settings) as stays:
        await stays.settled(4)
        await outside.send(chat(id="r1", session="s1"))
        await outside.answer(await outside.turn("r1"))
        await outside.wait_for(lambda: outside.state_of("s1").turn == 1)
        for number in range(4):
            await fence(settings, outside, number)
        async with GateProcess(settings) as other:
            await stays.logged("kept_but_lost")
            await other.settled(2)
            await outside.send(chat(id="r2", session="s1"))
            assert (await outside.turn("r2")).base is not None
            assert await other.terminate() == 0
        assert await stays.terminate() == 0
    assert ids_of(outside, "s1") == ["r1", "r2"]


async def test_the_sessions_are_read_to_their_end_past_an_open_transaction(
    settings: Settings, outside: Outside
) -> None:
    """Under read_committed the end lies before it; the records that are committed behind it count all the same."""
    tp = TopicPartition(outside.names.sessions, 0)
    other, own = (make_producer(settings.kafka, transactional_id=f"{tp.topic}.{name}") for name in ("other", "own"))
    await other.start()
    await own.start()
    await other.begin_transaction()
    await other.send_and_wait(tp.topic, b"other", key=b"k1", partition=0)
    await own.begin_transaction()
    await own.send_and_wait(tp.topic, b"own", key=b"k2", partition=0)
    await own.commit_transaction()
    reading = asyncio.create_task(read_to_end(settings.kafka, tp))
    done, _ = await asyncio.wait([reading], timeout=1.0)
    assert not done
    await other.abort_transaction()
    assert await reading == [(b"k2", b"own")]
    await other.stop()
    await own.stop()


async def test_a_gate_without_storage_starts_all_the_same(settings: Settings, outside: Outside) -> None:
    away = StorageSettings(endpoint="127.0.0.1:9", access_key="k", secret_key="s", timeout_s=0.5)
    async with GateProcess(msgspec.structs.replace(settings, storage=away)) as gate:
        await outside.send(chat(id="r1"))
        await outside.turn("r1")
        assert await gate.terminate() == 0
