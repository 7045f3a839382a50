"""One consumer that follows `tokens` and `results` for any number of streams."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from types import TracebackType
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from headrace.client.epochs import EpochBook
from headrace.client.feed import Feed, PointsTo
from headrace.client.inbox import Inbox
from headrace.client.scout import Scout, Start
from schemas.codec import RESULT
from schemas.errors import BrokerUnavailable, HeadraceError
from schemas.names import Names
from schemas.results import Result

# A fetch that waits for records on some partitions delays the first fetch of others by as long as this.
FETCH_MAX_WAIT_MS = 20
_POLL_MS = 500

# How long deltas may come behind the result that ended their request; then they are taken from the result.
_TAIL_WAIT_S = 2.0
_TAIL_POLL_S = 0.005


# A takeover just before the end may not be in the commit metadata yet (stale by up to 14 ms): it is read instead.
_NUM_RECORDS_BEFORE_END = 32


class Origin(NamedTuple):
    """Where to read a stream: its partition, and a start in the past where it is not from now on."""

    partition: int
    start: Start | None = None


class LogReader:
    """Reads those partitions where a stream is awaited, over a connected consumer without a group.

    Entered, it stands ready on all partitions; left, it ends all streams with an error.
    """

    def __init__(self, consumer: Any, names: Names, scout: Scout, epochs: EpochBook) -> None:
        self._consumer = consumer
        self._scout = scout
        self._epochs = epochs
        self._feeds = {number: Feed(names, number) for number in range(scout.num_partitions)}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: HeadraceError | None = None

    async def __aenter__(self) -> "LogReader":
        partitions = [tp for feed in self._feeds.values() for tp in (feed.tokens, feed.results)]
        self._consumer.assign(partitions)
        self._consumer.pause(*partitions)
        self._spawn(self._pump())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail_all(HeadraceError("the client was closed while this stream was open"))

    @contextlib.asynccontextmanager
    async def follow(self, inbox: Inbox, origin: Origin) -> AsyncIterator[None]:
        """Feed `inbox` inside the block. What is produced inside it will be seen.

        An origin in the past needs the partition for itself: no other stream may be read there.
        """
        if self._failure is not None:
            raise self._failure
        feed = self._feeds[origin.partition]
        try:
            async with feed.opening:
                if feed.is_idle:
                    await self._begin(feed, origin)
                feed.add(inbox)
            yield
        finally:
            feed.remove(inbox)
            if feed.is_idle:
                self._consumer.pause(feed.tokens, feed.results)

    async def _begin(self, feed: Feed, origin: Origin) -> None:
        start = origin.start or _a_little_before(await self._scout.ends(feed.number))
        feed.begin(await self._epochs.at(feed.number, start.tokens))
        self._consumer.seek(feed.tokens, start.tokens)
        self._consumer.seek(feed.results, start.results)
        self._consumer.resume(feed.tokens, feed.results)

    async def _pump(self) -> None:
        while True:
            try:
                batches = await self._consumer.getmany(timeout_ms=_POLL_MS)
            except KafkaError as error:
                # aiokafka survives a broker that is away; what it raises is a partition that cannot be read.
                self._fail_all(BrokerUnavailable(f"`tokens` or `results` cannot be read: {error}"))
                continue
            for tp, records in batches.items():
                self._take(tp, records)
            await asyncio.sleep(0)

    def _take(self, tp: TopicPartition, records: list[Any]) -> None:
        feed = self._feeds[tp.partition]
        for record in records:
            if tp == feed.tokens:
                feed.take_token(record.offset, record.key, record.value)
                continue
            for event in feed.take_result(record.offset, record.key, record.value):
                if isinstance(event, PointsTo):
                    self._spawn(self._fetch_result(feed, event))
                elif not event.has_ended:
                    self._spawn(self._await_tail(feed, event))

    async def _await_tail(self, feed: Feed, inbox: Inbox) -> None:
        """The result was read before the last deltas, which lie before it in the log: read up to there."""
        try:
            end = (await self._scout.ends(feed.number)).tokens
            async with asyncio.timeout(_TAIL_WAIT_S):
                while not inbox.has_ended and await self._consumer.position(feed.tokens) < end:  # noqa: ASYNC110
                    # (polled, since aiokafka has no event for a position)
                    await asyncio.sleep(_TAIL_POLL_S)
        except TimeoutError:
            pass  # an open transaction of another source holds them back; the result has them too
        except HeadraceError as error:
            inbox.fail(error)
        inbox.finish()

    async def _fetch_result(self, feed: Feed, pointer: PointsTo) -> None:
        """A duplicate's result may lie before where we began to read."""
        try:
            record = await self._scout.read(feed.results, pointer.result_offset)
        except HeadraceError as error:
            pointer.inbox.fail(error)
            return
        result = RESULT.decode(record.value) if record else None
        if isinstance(result, Result):
            pointer.inbox.take_result(result)
            pointer.inbox.finish()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = HeadraceError(f"the client's reader failed: {error!r}; please report it")
            self._failure.__cause__ = error
            self._fail_all(self._failure)

    def _fail_all(self, error: HeadraceError) -> None:
        for feed in self._feeds.values():
            feed.fail(error)


def _a_little_before(ends: Start) -> Start:
    return Start(max(0, ends.tokens - _NUM_RECORDS_BEFORE_END), ends.results)
