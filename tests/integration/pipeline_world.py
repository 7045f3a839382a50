"""Plays gate and worker around the real pipeline: turns are written as the gate writes them, batches are read."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from headrace.local.background import BackgroundStack
from pipeline.role import PipelineRole
from runtime.headers import record_headers
from runtime.kafka import make_admin, make_consumer, make_producer, partition_for
from runtime.role import run_role
from runtime.topics import create_missing
from schemas.batches import Member
from schemas.codec import BATCH, TURN
from schemas.names import LANES, Lane, Names
from schemas.settings import KafkaSettings, Settings, TopicsSettings
from schemas.topics import registry
from schemas.turns import Turn
from tests.tied import tied

NUM_PARTITIONS = 3
WAIT_S = 40.0


def settings_for(stack: BackgroundStack, namespace: str) -> Settings:
    return Settings(
        kafka=KafkaSettings(bootstrap_servers=stack.bootstrap_servers, session_timeout_ms=6_000),
        storage=stack.s3,
        topics=TopicsSettings(namespace=namespace, partitions=NUM_PARTITIONS),
    )


class Output(NamedTuple):
    """A member of a batch, and where it was found."""

    member: Member
    topic: str
    partition: int
    key: bytes
    headers: dict[str, bytes]

    @property
    def request_id(self) -> str:
        return self.member.envelope.request_id


class World:
    """Topics of one namespace, a writer of turns, and a reader of all batches and refusals from their beginning."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.names = Names(settings.topics.namespace)
        self.outputs: list[Output] = []
        self._producer: AIOKafkaProducer = make_producer(settings.kafka)
        self._reader: AIOKafkaConsumer = make_consumer(settings.kafka)

    async def __aenter__(self) -> "World":
        topics = registry(self.names, self.settings.topics, self.settings.models)
        await create_missing(self.settings.kafka, topics)
        await self._producer.start()
        await self._reader.start()
        outputs = [names(lane) for lane in LANES for names in (self.names.refusals, self._batches)]
        self._reader.assign([TopicPartition(topic, p) for topic in outputs for p in range(NUM_PARTITIONS)])
        await self._reader.seek_to_beginning()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._producer.stop()
        await self._reader.stop()

    async def write(self, *turns: Turn, lane: Lane = "interactive", partition: int | None = None) -> None:
        """Write turns with the plain producer; returns when they are acknowledged."""
        sent = [await self._producer.send(**self.record(turn, lane, partition)) for turn in turns]
        for acknowledged in sent:
            await acknowledged

    async def write_raw(self, value: bytes | None, *, key: bytes | None, partition: int) -> None:
        """Write a record as it is."""
        await self._producer.send_and_wait(self.names.turns(), value, key=key, partition=partition)

    def record(self, turn: Turn, lane: Lane = "interactive", partition: int | None = None) -> dict[str, Any]:
        """The arguments of `send` for a turn, as the gate gives them."""
        key = turn.envelope.key.encode()
        return {
            "topic": self.names.turns(lane),
            "value": TURN.encode(turn),
            "key": key,
            "partition": partition_for(key, NUM_PARTITIONS) if partition is None else partition,
            "headers": record_headers("turn", turn.envelope, source="gate"),
        }

    async def read(self, until: Callable[[list[Output]], bool]) -> list[Output]:
        """Read batches until `until` is satisfied with all that came since the beginning."""
        async with asyncio.timeout(WAIT_S):
            while not until(self.outputs):
                for batch in (await self._reader.getmany(timeout_ms=200)).values():
                    for record in batch:
                        self.outputs += [
                            Output(member, record.topic, record.partition, record.key, dict(record.headers))
                            for member in BATCH.decode(record.value).members
                        ]
        return self.outputs

    async def read_all(self, request_ids: Sequence[str]) -> list[Output]:
        """Read until each of these requests has come out."""
        wanted = set(request_ids)
        return await self.read(lambda outputs: wanted <= {output.request_id for output in outputs})

    async def committed(self, topic: str, partition: int) -> int:
        """What the pipeline has committed of an input partition, 0 if nothing."""
        admin = make_admin(self.settings.kafka)
        await admin.start()
        try:
            offsets = await admin.list_consumer_group_offsets(self.names.pipeline_group)
        finally:
            await admin.close()
        found: OffsetAndMetadata | None = offsets.get(TopicPartition(topic, partition))
        return found.offset if found else 0

    async def end(self, topic: str, partition: int) -> int:
        """The end of a partition."""
        tp = TopicPartition(topic, partition)
        end: int = (await self._reader.end_offsets([tp]))[tp]
        return end

    async def wait_committed(self, topic: str, partition: int, offset: int) -> None:
        """Returns when the pipeline has committed this offset."""
        async with asyncio.timeout(WAIT_S):
            while await self.committed(topic, partition) < offset:  # noqa: ASYNC110 - the broker tells nobody
                await asyncio.sleep(0.1)

    def _batches(self, lane: Lane) -> str:
        (model,) = self.settings.models
        return self.names.batches(model, lane)


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[PipelineRole]:
    """The pipeline in this process."""
    role = PipelineRole(settings)
    await role.start()
    run = asyncio.create_task(role.run())
    try:
        yield role
    finally:
        await role.stop()
        await run


class Process:
    """The pipeline as a process of its own, started as production starts it, to be killed."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None

    @property
    def process(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("not started")
        return self._process

    async def start(self) -> None:
        path = self._folder / "settings.json"
        path.write_bytes(msgspec.json.encode(self._settings))
        self._process = await asyncio.create_subprocess_exec(
            *tied(sys.executable, "-m", "tests.integration.pipeline_world", path)
        )

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    async def stop(self) -> int:
        self.process.terminate()
        return await self.process.wait()


if __name__ == "__main__":
    given = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings)
    sys.exit(asyncio.run(run_role(PipelineRole(given), metrics_port=0)))
