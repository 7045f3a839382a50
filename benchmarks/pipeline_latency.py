"""What Kafka and the pipeline add to the time to the first token, and where each millisecond goes.

Produce to first delta read, minus the bare engine's time for the same prompt under the same arrivals (prompts of 32
tokens, max_tokens 1). Blocks of requests over Kafka and blocks of the bare engine take turns, so that both see the same
machine. The floor is the number of broker trips times one measured trip (produce to consume of one record).
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition

from benchmarks.report import Goal, Interval, finish, interval, percentile
from benchmarks.rig import SMOLLM2, TINY, Arrival, PlainClient, ask_engine, bare_engine, prompt, running
from engine.thread import EngineThread
from runtime.kafka import make_consumer, make_producer
from schemas.codec import BATCH
from schemas.names import Names
from schemas.settings import Settings

PROMPT_TOKENS = 32
NUM_PAIRS = 10
WARM_UP_S = 12.0
# requests, turns, batches, tokens: one produce and one fetch each.
NUM_TRIPS = 4
NUM_TRIPS_MEASURED = 200
P50_GOAL_MS, P99_GOAL_MS = 25.0, 80.0


class Load(NamedTuple):
    """How requests arrive."""

    model: str
    requests_per_s: float
    requests_a_block: int


LOADS = (Load(TINY, 1, 12), Load(TINY, 20, 80), Load(SMOLLM2, 1, 12))


class Added(NamedTuple):
    """What the way over Kafka added, in milliseconds, for one load."""

    load: Load
    p50: Interval
    p99: Interval
    hops: dict[str, float]
    trip_ms: float


async def measure() -> None:
    """Measure each load and report."""
    added = [await _measure(load) for load in LOADS]
    rows = [["load", "added p50 ms", "added p99 ms", "floor ms", "p50 / floor", *added[0].hops]]
    figures: dict[str, object] = {}
    goals = []
    for one in added:
        name = f"{one.load.model} at {one.load.requests_per_s:g}/s"
        floor = NUM_TRIPS * one.trip_ms
        rows.append(
            [name, str(one.p50), str(one.p99), f"{floor:.1f}", f"{one.p50.value / floor:.2f}"]
            + [f"{value:.1f}" for value in one.hops.values()]
        )
        figures[name] = {"p50_ms": one.p50, "p99_ms": one.p99, "floor_ms": floor, "hops_p50_ms": one.hops}
        goals += [
            Goal(f"{name}: added p50 ms", one.p50, P50_GOAL_MS, "lower"),
            Goal(f"{name}: added p99 ms", one.p99, P99_GOAL_MS, "lower"),
        ]
    finish("pipeline_latency", figures, goals, rows)


async def _measure(load: Load) -> Added:
    async with running(load.model) as ensemble, PlainClient(ensemble.settings) as client:
        with bare_engine(ensemble.settings) as engine:
            over_kafka, alone = await _blocks(client, engine, load)
        trip_ms = await _one_trip(ensemble.settings)
        hops = await _hops(ensemble.settings, over_kafka)
    baseline = percentile([arrival.first_s - arrival.sent_s for arrival in alone.values()], 0.5)
    extra = [1000 * (arrival.first_s - arrival.sent_s - baseline) for arrival in over_kafka.values()]
    return Added(load, interval(extra), interval(extra, lambda values: percentile(values, 0.99)), hops, trip_ms)


async def _blocks(
    client: PlainClient, engine: EngineThread, load: Load
) -> tuple[dict[str, Arrival], dict[str, Arrival]]:
    """Blocks over Kafka and alone in turns, after a warm-up of both."""
    numbers = iter(range(1_000_000))

    async def kafka(number: int) -> Arrival:
        return await client.ask(f"k{number}", prompt(number, PROMPT_TOKENS), max_tokens=1)

    async def bare(number: int) -> Arrival:
        return await ask_engine(engine, f"e{number}", prompt(number, PROMPT_TOKENS), max_tokens=1)

    await _paced(kafka, [next(numbers) for _ in range(int(WARM_UP_S * 10))], 10.0)
    await _paced(bare, [next(numbers) for _ in range(20)], 10.0)
    over_kafka: dict[str, Arrival] = {}
    alone: dict[str, Arrival] = {}
    for pair in range(NUM_PAIRS):
        print(f"{load.model} at {load.requests_per_s:g}/s: pair {pair + 1} of {NUM_PAIRS}", flush=True)
        block = [next(numbers) for _ in range(load.requests_a_block)]
        over_kafka |= {f"k{n}": a for n, a in (await _paced(kafka, block, load.requests_per_s)).items()}
        alone |= {f"e{n}": a for n, a in (await _paced(bare, block, load.requests_per_s)).items()}
    return over_kafka, alone


async def _paced(
    ask: Callable[[int], Awaitable[Arrival]], numbers: list[int], requests_per_s: float
) -> dict[int, Arrival]:
    """Ask at a steady rate, whatever the answers take."""

    async def at(place: int, number: int) -> Arrival:
        await asyncio.sleep(place / requests_per_s)
        return await ask(number)

    found = await asyncio.gather(*(at(place, number) for place, number in enumerate(numbers)))
    return dict(zip(numbers, found, strict=True))


async def _one_trip(settings: Settings) -> float:
    """Produce to consume of one record, median, in milliseconds."""
    topic = Names(settings.topics.namespace, settings.topics.generation).control
    producer, consumer = make_producer(settings.kafka), make_consumer(settings.kafka)
    await producer.start()
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_end(partition)
        await consumer.position(partition)
        times = []
        for _ in range(NUM_TRIPS_MEASURED):
            started_s = time.monotonic()
            await producer.send(topic, b"trip", partition=0)
            await consumer.getone()
            times.append(1000 * (time.monotonic() - started_s))
        return percentile(times, 0.5)
    finally:
        await consumer.stop()
        await producer.stop()


async def _hops(settings: Settings, arrivals: dict[str, Arrival]) -> dict[str, float]:
    """Median milliseconds from topic to topic, by the broker's time of each record (a millisecond fine)."""
    names = Names(settings.topics.namespace, settings.topics.generation)
    way = {
        "requests": names.requests(),
        "turns": names.turns(),
        "batches": names.batches(settings.worker.model),
        "tokens": names.tokens,
    }
    consumer = make_consumer(settings.kafka)
    await consumer.start()
    try:
        times = {stop: await _times(consumer, topic, settings.topics.partitions) for stop, topic in way.items()}
    finally:
        await consumer.stop()
    offset_ms = 1000 * (time.time() - time.monotonic())
    hops: dict[str, list[float]] = {}
    for name, arrival in arrivals.items():
        stops = [("client", 1000 * arrival.sent_s + offset_ms)]
        stops += [(stop, times[stop][name]) for stop in way]
        stops.append(("reader", 1000 * arrival.first_s + offset_ms))
        for (_, before), (stop, after) in itertools.pairwise(stops):
            hops.setdefault(f"→ {stop}", []).append(after - before)
    return {hop: percentile(values, 0.5) for hop, values in hops.items()}


async def _times(consumer: AIOKafkaConsumer, topic: str, num_partitions: int) -> dict[str, float]:
    """Broker time of each request's first record on a topic, by the record's key."""
    partitions = [TopicPartition(topic, number) for number in range(num_partitions)]
    ends = await consumer.end_offsets(partitions)
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    found: dict[str, float] = {}
    while any([await consumer.position(tp) < end for tp, end in ends.items()]):
        for records in (await consumer.getmany(timeout_ms=200)).values():
            for record in records:
                for request_id in _requests(topic, record.key, record.value):
                    found.setdefault(request_id, float(record.timestamp))
    return found


def _requests(topic: str, key: bytes | None, value: bytes) -> list[str]:
    """The requests that a record is about. A batch is about several; marks in the journal are no delta."""
    if ".batches." in topic:
        return [member.envelope.request_id for member in BATCH.decode(value).members]
    is_mark = topic.endswith(".tokens") and b'"delta/1"' not in value
    return [] if is_mark or key is None else [key.decode()]


if __name__ == "__main__":
    asyncio.run(measure())
