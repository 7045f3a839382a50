"""Looks up where in the log to read, on a connection of its own.

A broker answers one connection's requests in order: on the reader's, a look-up would wait behind the fetch that waits
for new records.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from runtime.broker import broker_errors
from runtime.kafka import make_consumer, running
from runtime.reading import read_up_to
from schemas.names import LANES, Names
from schemas.settings import KafkaSettings

_READ_ONE_MS = 5_000
_PATIENCE_S = 15.0


class Start(NamedTuple):
    """Offsets to begin reading at."""

    tokens: int
    results: int


class Scout:
    """Finds offsets in `tokens` and `results`, and reads single records, over a connected consumer of its own."""

    def __init__(self, consumer: Any, kafka: KafkaSettings, names: Names, num_partitions: int) -> None:
        self.num_partitions = num_partitions
        self._consumer = consumer
        self._kafka = kafka
        self._names = names
        self._one_at_a_time = asyncio.Lock()
        # Assigned, so that aiokafka keeps their leaders up to date; paused, since only single records are read.
        topics = (names.requests(), names.tokens, names.results)
        partitions = [TopicPartition(topic, number) for topic in topics for number in range(num_partitions)]
        consumer.assign(partitions)
        consumer.pause(*partitions)

    async def ends(self, partition: int) -> Start:
        """Where the next committed records will be."""
        tokens, results = self._pair(partition)
        with broker_errors(self._kafka):
            found = await self._consumer.end_offsets([tokens, results])
        return Start(found[tokens], found[results])

    async def earliest(self, partition: int) -> Start:
        """The oldest records that are kept."""
        tokens, results = self._pair(partition)
        with broker_errors(self._kafka):
            found = await self._consumer.beginning_offsets([tokens, results])
        return Start(found[tokens], found[results])

    async def at(self, partition: int, time_ms: int) -> Start:
        """The first records at or after a broker time, in milliseconds since the epoch."""
        tokens, results = self._pair(partition)
        # The ends come first: what arrives between the two look-ups must not be left out.
        ends = await self.ends(partition)
        with broker_errors(self._kafka):
            found = await self._consumer.offsets_for_times({tokens: time_ms, results: time_ms})
        return Start(
            found[tokens].offset if found[tokens] else ends.tokens,
            found[results].offset if found[results] else ends.results,
        )

    async def read(self, tp: TopicPartition, offset: int) -> Any | None:
        """The record at one offset of `requests`, `tokens` or `results`; None if it is not kept any more."""
        async with self._one_at_a_time:
            self._consumer.seek(tp, offset)
            self._consumer.resume(tp)
            try:
                with broker_errors(self._kafka):
                    found = await self._consumer.getmany(tp, timeout_ms=_READ_ONE_MS, max_records=1)
            finally:
                self._consumer.pause(tp)
        records = found.get(tp)
        return records[0] if records and records[0].offset == offset else None

    async def result_at(self, partition: int, offset: int) -> bytes | None:
        """The value of one record of `results`; None if it is not kept any more."""
        record = await self.read(TopicPartition(self._names.results, partition), offset)
        return record.value if record else None

    async def results(self, partition: int, start: int, end: int) -> AsyncGenerator[ConsumerRecord, None]:
        """The records of a stretch of `results`, on a connection of its own: it may be long, and other look-ups wait.

        Raises:
            BrokerUnavailable: it cannot be read.
        """
        tp = TopicPartition(self._names.results, partition)
        with broker_errors(self._kafka):
            async with (
                running(make_consumer(self._kafka)) as consumer,
                aclosing(_stretch(consumer, {tp: start}, {tp: end})) as records,
            ):
                async for record in records:
                    yield record

    async def requests(self, partition: int, start_ms: int | None) -> AsyncGenerator[ConsumerRecord, None]:
        """What was asked in a partition, on both lanes: since a broker time, or all that is kept. Likewise."""
        tps = [TopicPartition(self._names.requests(lane), partition) for lane in LANES]
        with broker_errors(self._kafka):
            async with running(make_consumer(self._kafka)) as consumer:
                ends = await consumer.end_offsets(tps)
                starts = await consumer.beginning_offsets(tps)
                if start_ms is not None:
                    found = await consumer.offsets_for_times(dict.fromkeys(tps, start_ms))
                    starts = {tp: found[tp].offset if found[tp] else ends[tp] for tp in tps}
                async with aclosing(_stretch(consumer, starts, ends)) as records:
                    async for record in records:
                        yield record

    def _pair(self, partition: int) -> tuple[TopicPartition, TopicPartition]:
        return TopicPartition(self._names.tokens, partition), TopicPartition(self._names.results, partition)


async def _stretch(
    consumer: Any, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> AsyncGenerator[ConsumerRecord, None]:
    consumer.assign(list(starts))
    for tp, start in starts.items():
        consumer.seek(tp, start)
    async with aclosing(read_up_to(consumer, ends, patience_s=_PATIENCE_S)) as batches:
        async for batch in batches:
            for record in batch:
                yield record
