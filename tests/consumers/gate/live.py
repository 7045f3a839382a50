"""A gate as a process of its own on the real broker, with clients and workers played record by record."""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import msgspec
from aiokafka import TopicPartition
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.structs import ConsumerRecord

from consumers.gate.role import GateRole
from consumers.gate.takeover import input_topics
from runtime.headers import record_headers
from runtime.kafka import make_admin, make_consumer, make_producer, partition_for
from runtime.topics import create_missing
from runtime.tracing import Headers
from schemas.codec import DEAD_LETTER, RESULT, SESSION, TURN
from schemas.control import DeadLetter
from schemas.envelope import Status
from schemas.names import Names
from schemas.results import Result, ResultRecord
from schemas.sessions import SessionRecord, SessionState, session_record_key
from schemas.settings import Settings
from schemas.topics import registry
from schemas.turns import Turn
from tests.consumers.gate.builders import encoded, result_of
from tests.tied import tied

# What `headrace serve gate` does, without the command line: settings come on stdin, so that no secret is an argument.
_GATE = """
import asyncio, sys, msgspec
from consumers.gate.role import GateRole
from runtime import logging
from runtime.role import run_role
from schemas.settings import Settings

settings = msgspec.json.decode(sys.stdin.buffer.read(), type=Settings)
logging.configure(settings.logging, role="gate")

async def main():
    return await run_role(GateRole(settings), metrics_port=0)

sys.exit(asyncio.run(main()))
"""


class _RawName(str):
    """A header's name that is written as the very bytes that its characters stand for."""

    __slots__ = ()

    def encode(self, encoding: str = "latin-1", errors: str = "strict") -> bytes:
        return super().encode("latin-1", errors)


_ROOT = Path(__file__).parents[3]


_SIGNS_OF_NEGLECT = ("never retrieved", "was destroyed", "Unclosed", "never awaited", "Traceback")


@asynccontextmanager
async def gate_inside(settings: Settings) -> AsyncIterator[GateRole]:
    """A gate in the test's own event loop: it starts in a moment, and what no record tells can be looked at."""
    role = GateRole(settings)
    await role.start()
    running = asyncio.create_task(role.run())
    try:
        yield role
    finally:
        await role.stop()
        await running


class GateProcess:
    """One gate process. Its log lines are kept for what a test wants to know of it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._lines: list[str] = []
        self._new_line = asyncio.Condition()

    async def __aenter__(self) -> "GateProcess":
        self._process = await asyncio.create_subprocess_exec(
            *tied(sys.executable, "-c", _GATE), stdin=PIPE, stderr=PIPE, env={**os.environ, "PYTHONPATH": str(_ROOT)}
        )
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(msgspec.json.encode(self._settings))
        await stdin.drain()
        stdin.close()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.returncode is None:
            await self.kill()
        if error is not None:
            sys.stderr.write("".join(self._lines))
            return
        # What asyncio and aiokafka say of tasks, futures and clients that somebody forgot.
        forgotten = [line for line in self._lines if any(sign in line for sign in _SIGNS_OF_NEGLECT)]
        assert not forgotten, "".join(forgotten)

    @property
    def process(self) -> Process:
        """The child."""
        assert self._process is not None
        return self._process

    @property
    def lines(self) -> list[str]:
        """What it has logged."""
        return list(self._lines)

    async def logged(self, what: str, *, num_times: int = 1) -> None:
        """Wait until it has logged `what` so many times."""
        async with self._new_line:
            await self._new_line.wait_for(lambda: sum(what in line for line in self._lines) >= num_times)

    @property
    def partitions(self) -> list[int]:
        """The partitions that it works on, as far as it knows."""
        events = [msgspec.json.decode(line) for line in self._lines if line.startswith("{")]
        return next((one["partitions"] for one in reversed(events) if one["event"] == "settled"), [])

    async def settled(self, num_partitions: int) -> None:
        """Wait until it works on so many partitions, as far as it knows."""
        async with self._new_line:
            await self._new_line.wait_for(lambda: len(self.partitions) == num_partitions)

    async def terminate(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return await self.ended()

    async def kill(self) -> int:
        """SIGKILL: it has no moment left for anything."""
        self.process.kill()
        return await self.ended()

    async def ended(self) -> int:
        """Wait until it has ended by itself; its exit code."""
        code = await self.process.wait()
        if self._reading is not None:
            await self._reading
        return code

    async def _read(self) -> None:
        stderr = self.process.stderr
        assert stderr is not None
        while line := await stderr.readline():
            async with self._new_line:
                self._lines.append(line.decode())
                self._new_line.notify_all()


class Seen(NamedTuple):
    """A committed record of an output topic."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int


class Outside:
    """All that is around a gate: sends requests, reads what the gate writes, answers turns as a worker would."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.names = Names(settings.topics.namespace, settings.topics.generation)
        self.seen: list[Seen] = []
        self._producer = make_producer(settings.kafka)
        self._consumer = make_consumer(settings.kafka)
        self._reading: asyncio.Task[None] | None = None
        self._news = asyncio.Condition()

    async def __aenter__(self) -> "Outside":
        settings, names = self.settings, self.names
        await create_missing(settings.kafka, registry(names, settings.topics, list(settings.models)))
        await self._producer.start()
        await self._consumer.start()
        topics = [names.turns(), names.turns("bulk"), names.results, names.sessions, names.dead_letters]
        everywhere = [TopicPartition(topic, number) for topic in topics for number in range(settings.topics.partitions)]
        self._consumer.assign(everywhere)
        await self._consumer.seek_to_beginning(*everywhere)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._consumer.stop()
        await self._producer.stop()

    def partition_of(self, key: str) -> int:
        """Where the records of a request or session are."""
        return partition_for(key.encode(), self.settings.topics.partitions)

    def id_in(self, partition: int) -> str:
        """A request id that belongs into a partition."""
        return next(name for number in count() if self.partition_of(name := f"in{number}") == partition)

    async def records_of(self, topic: str, partition: int) -> list[Seen]:
        """All records of one partition of any topic."""
        tp = TopicPartition(topic, partition)
        reader = make_consumer(self.settings.kafka)
        await reader.start()
        try:
            end = (await reader.end_offsets([tp]))[tp]
            reader.assign([tp])
            await reader.seek_to_beginning(tp)
            found: list[Seen] = []
            while await reader.position(tp) < end:
                batches = await reader.getmany(tp, timeout_ms=500)
                found += [_seen(record) for record in batches.get(tp, [])]
            return found
        finally:
            await reader.stop()

    async def send(self, body: dict[str, object], *, topic: str | None = None) -> str:
        """Send a request as our client does; gives its place."""
        key = str(body.get("session") or body["id"])
        return await self.send_raw(encoded(body), key=key.encode(), partition=self.partition_of(key), topic=topic)

    async def send_raw(
        self,
        value: bytes | None,
        *,
        key: bytes | None,
        partition: int,
        headers: Headers = (),
        topic: str | None = None,
    ) -> str:
        """Send any bytes anywhere; gives their place, which is the id of a request without one."""
        topic = topic or self.names.requests()
        sent = await self._producer.send_and_wait(topic, value, key=key, partition=partition, headers=list(headers))
        return f"{topic}-{partition}-{sent.offset}"

    async def send_with_raw_header_name(
        self, name: bytes, records: Sequence[tuple[bytes, bytes]], *, partition: int
    ) -> int:
        """Send (key, value) pairs, each with a header of any name, as no library does; gives the first one's offset."""
        topic = self.names.requests()
        batch = _DefaultRecordBatchBuilderPy(
            magic=2,
            compression_type=0,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=1 << 20,
        )
        for number, (key, value) in enumerate(records):
            batch.append(number, int(time.time() * 1000), key, value, [(_RawName(name.decode("latin-1")), b"1")])
        written = [(topic, [(partition, bytes(batch.build()))])]
        request = ProduceRequest(transactional_id=None, required_acks=-1, timeout=10_000, topics=written)
        client = self._producer.client
        leader = client.cluster.leader_for_partition(TopicPartition(topic, partition))
        response = await client.send(leader or client.get_random_node(), request)
        ((_, ((_, error, offset, *_),)),) = response.topics
        assert error == 0
        return int(offset)

    async def answer(self, turn: Turn, *, status: Status = "completed", base: int = 0) -> None:
        """End a turn as a worker does."""
        await self.send_result(result_of(turn, status=status, base=base), turn)

    async def send_result(self, result: ResultRecord, turn: Turn) -> None:
        """Write a record on `results` beside the request that it is about."""
        key = turn.envelope.key
        headers = record_headers("result", turn.envelope, source="headrace/worker")
        await self._producer.send_and_wait(
            self.names.results,
            RESULT.encode(result),
            key=key.encode(),
            partition=self.partition_of(key),
            headers=headers,
        )

    async def wait_for(self, what: Callable[[], bool]) -> None:
        """Wait until something is true of what was read so far."""
        async with self._news:
            await self._news.wait_for(what)

    async def turn(self, request_id: str) -> Turn:
        """The turn of a request, when it has been forwarded."""
        await self.wait_for(lambda: any(one.envelope.request_id == request_id for one in self.turns))
        return next(one for one in self.turns if one.envelope.request_id == request_id)

    async def result(self, request_id: str) -> Result:
        """The first terminal record of a request, when it is there."""
        await self.wait_for(lambda: bool(self.results_of(request_id)))
        return self.results_of(request_id)[0]

    def of(self, topic: str) -> list[Seen]:
        """What was read of one topic."""
        return [one for one in self.seen if one.topic == topic]

    @property
    def turns(self) -> list[Turn]:
        """All turns, in the order in which they were read."""
        topics = {self.names.turns(), self.names.turns("bulk")}
        return [TURN.decode(one.value) for one in self.seen if one.topic in topics]

    def results_of(self, request_id: str) -> list[Result]:
        """All terminal records of a request."""
        decoded = [RESULT.decode(one.value) for one in self.of(self.names.results)]
        return [one for one in decoded if isinstance(one, Result) and one.request_id == request_id]

    def session_records(self) -> dict[bytes | None, SessionRecord]:
        """The newest record of each key on `sessions`."""
        newest = {one.key: one.value for one in self.of(self.names.sessions)}
        return {key: SESSION.decode(value) for key, value in newest.items() if value is not None}

    def state_of(self, session: str, tenant: str = "default") -> SessionState:
        """Where a session stands; a new one if nothing was written of it."""
        found = self.session_records().get(session_record_key(tenant, session))
        return found if isinstance(found, SessionState) else SessionState(session=session, tenant=tenant)

    def dead_letters_of(self, place: str) -> list[DeadLetter]:
        """The dead letters of the record at a place."""
        letters = [DEAD_LETTER.decode(one.value) for one in self.of(self.names.dead_letters)]
        return [one for one in letters if f"{one.topic}-{one.partition}-{one.offset}" == place]

    async def lag(self) -> int:
        """How many records the gate has not committed, without the markers of transactions, which hold no record."""
        admin, reader = make_admin(self.settings.kafka), make_consumer(self.settings.kafka)
        await admin.start()
        await reader.start()
        try:
            committed = await admin.list_consumer_group_offsets(self.names.gate_group)
            inputs = [
                TopicPartition(topic, number)
                for topic in input_topics(self.names)
                for number in range(self.settings.topics.partitions)
            ]
            starts = await reader.beginning_offsets(inputs)
            reader.assign(inputs)
            for tp in inputs:
                reader.seek(tp, committed[tp].offset if tp in committed else starts[tp])
            found = 0
            while batches := await reader.getmany(timeout_ms=500):
                found += sum(len(records) for records in batches.values())
            return found
        finally:
            await reader.stop()
            await admin.close()

    async def _read(self) -> None:
        async for record in self._consumer:
            async with self._news:
                self.seen.append(_seen(record))
                self._news.notify_all()


def _seen(record: "ConsumerRecord[bytes, bytes]") -> Seen:
    return Seen(
        record.topic, record.partition, record.offset, record.key, record.value, record.headers, record.timestamp
    )
