"""What benchmarks share: all roles on a Kafka and S3 of their own, plain requests of exact length, a bare engine."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from consumers.worker.host import load_model
from engine.thread import EngineThread
from engine.types import GenerationOutput, GenerationRequest
from headrace.ensemble import Ensemble
from headrace.settings import resolve_settings
from runtime.kafka import make_consumer, make_producer, partition_for
from schemas.names import Names
from schemas.sampling import SamplingParams
from schemas.settings import DEFAULT_MODEL, Settings
from tests.consumers.worker.tiny_model import write_tiny_model

SMOLLM2 = DEFAULT_MODEL
TINY = "tiny-random"


class Arrival(NamedTuple):
    """When something of a request was seen, on this process's monotonic clock, in seconds."""

    sent_s: float
    first_s: float
    last_s: float
    num_tokens: int


@asynccontextmanager
async def running(model: str, *overrides: str) -> AsyncIterator[Ensemble]:
    """All roles for one model, in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        flags = [
            f"local.data_dir={folder}/data",
            "logging.level=warning",
            *model_flags(model, Path(folder)),
            *overrides,
        ]
        async with Ensemble(resolve_settings(env={}, overrides=flags), overrides=flags) as ensemble:
            yield ensemble


def model_flags(model: str, folder: Path) -> list[str]:
    """The settings that serve a model; the tiny one is written first."""
    if model != TINY:
        return [f"worker.model={model}"]
    return [f"worker.model={TINY}", f"models.{TINY}.path={write_tiny_model(folder / 'tiny.gguf')}"]


@contextmanager
def bare_engine(settings: Settings) -> Iterator[EngineThread]:
    """The engine alone, as the worker loads it."""
    hosted = load_model(settings)
    hosted.engine.start()
    try:
        yield hosted.engine
    finally:
        hosted.engine.stop(drain=False)


def prompt(number: int, num_tokens: int) -> list[int]:
    """Token ids that no other number shares from the first block on: nothing comes from the prefix cache."""
    return [3 + (number * 7919 + place * 31 + (place == 0) * number) % 200 for place in range(num_tokens)]


class PlainClient:
    """A client on bare Kafka: one producer, one reader of all partitions of `tokens` and `results`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._names = Names(settings.topics.namespace, settings.topics.generation)
        self._producer: AIOKafkaProducer = make_producer(settings.kafka)
        self._consumer: AIOKafkaConsumer = make_consumer(settings.kafka)
        self._seen: dict[str, list[tuple[float, int]]] = {}
        self._ended: dict[str, asyncio.Event] = {}
        self._reading: asyncio.Task[None] | None = None
        self.num_deltas = 0

    async def __aenter__(self) -> "PlainClient":
        await self._producer.start()
        await self._consumer.start()
        topics = (self._names.tokens, self._names.results)
        partitions = [TopicPartition(t, p) for t in topics for p in range(self._settings.topics.partitions)]
        self._consumer.assign(partitions)
        await self._consumer.seek_to_end(*partitions)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._consumer.stop()
        await self._producer.stop()

    async def ask(self, request_id: str, token_ids: Sequence[int], *, max_tokens: int, lane: str = "") -> Arrival:
        """One completion over Kafka; returns when its result is read."""
        body = {
            "id": request_id,
            "model": self._settings.worker.model,
            "prompt": list(token_ids),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        self._seen[request_id], self._ended[request_id] = [], asyncio.Event()
        key = request_id.encode()
        sent_s = time.monotonic()
        await self._producer.send(
            self._names.requests("bulk" if lane == "bulk" else "interactive"),
            msgspec.json.encode(body),
            key=key,
            partition=partition_for(key, self._settings.topics.partitions),
        )
        await self._ended[request_id].wait()
        seen = self._seen.pop(request_id)
        del self._ended[request_id]
        return Arrival(sent_s, seen[0][0], seen[-1][0], sum(tokens for _, tokens in seen))

    async def _read(self) -> None:
        async for record in self._consumer:
            now_s = time.monotonic()
            value: dict[str, Any] = msgspec.json.decode(record.value)
            request_id = value.get("request_id", "")
            if request_id not in self._seen:
                continue
            if record.topic == self._names.results:
                if value["status"] != "completed":
                    raise RuntimeError(f"{request_id} ended {value['status']}: {value.get('error')}")
                self._ended[request_id].set()
            elif value["schema"] == "delta/1":
                self.num_deltas += 1
                self._seen[request_id].append((now_s, len(value.get("token_ids", []))))


async def ask_engine(engine: EngineThread, request_id: str, token_ids: list[int], *, max_tokens: int) -> Arrival:
    """The same completion of the bare engine."""
    loop = asyncio.get_running_loop()
    outputs: asyncio.Queue[tuple[float, GenerationOutput]] = asyncio.Queue()

    def on_output(output: GenerationOutput) -> None:
        loop.call_soon_threadsafe(outputs.put_nowait, (time.monotonic(), output))

    sampling = SamplingParams(max_tokens=max_tokens, seed=0, temperature=0.0, ignore_eos=True)
    sent_s = time.monotonic()
    engine.submit(GenerationRequest(request_id=request_id, prompt_token_ids=token_ids, sampling=sampling), on_output)
    times: list[float] = []
    num_tokens = 0
    while True:
        at_s, output = await outputs.get()
        times.append(at_s)
        num_tokens += len(output.token_ids)
        if output.error is not None:
            raise RuntimeError(output.error.message)
        if output.finish_reason is not None:
            return Arrival(sent_s, times[0], times[-1], num_tokens)
