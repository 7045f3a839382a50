"""One consumer that follows `tokens` and `results` for any number of streams."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from headrace.client.claims import ClientClaims
from headrace.client.epochs import EpochBook
from headrace.client.feed import Claimed, Feed
from headrace.client.inbox import Inbox
from headrace.client.repeats import Repeat, result_of_repeat
from headrace.client.scout import Scout, Start
from schemas.errors import BrokerUnavailable, HeadraceError
from schemas.names import Names

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

    def __init__(self, consumer: Any, names: Names, scout: Scout, epochs: EpochBook, claims: ClientClaims) -> None:
        self._consumer = consumer
        self._scout = scout
        self._epochs = epochs
        self._claims = claims
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

    def follow(self, inbox: Inbox, origin: Origin) -> "_Following":
        """Feed `inbox` inside the block. What is produced inside it will be seen.

        An origin in the past needs the partition for itself: no other stream may be read there.
        """
        return _Following(self, inbox, origin)

    async def _begin_to_feed(self, inbox: Inbox, origin: Origin) -> None:
        if self._failure is not None:
            raise self._failure
        feed = self._feeds[origin.partition]
        try:
            async with feed.opening:
                if feed.is_idle:
                    await self._begin(feed, origin)
                feed.add(inbox)
        except BaseException:
            self._cease_to_feed(inbox, origin)
            raise

    def _cease_to_feed(self, inbox: Inbox, origin: Origin) -> None:
        feed = self._feeds[origin.partition]
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
                if isinstance(event, Repeat):
                    self._spawn(self._fetch_result(feed, event))
                elif isinstance(event, Claimed):
                    self._spawn(self._follow_claim(feed, event))
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

    async def _follow_claim(self, feed: Feed, claimed: Claimed) -> None:
        inbox = claimed.inbox
        try:
            inbox.take_result(await self._claims.whole(claimed.result))
        except HeadraceError as error:
            inbox.fail(error)
        if not inbox.has_ended:
            await self._await_tail(feed, inbox)

    async def _fetch_result(self, feed: Feed, repeat: Repeat) -> None:
        """The result of the first may lie before where we began to read. If it is still to come we read on."""
        try:
            result = await result_of_repeat(self._scout, feed.number, repeat)
            whole = None if result is None else await self._claims.whole(result)
        except HeadraceError as error:
            repeat.inbox.fail(error)
            return
        if whole is not None:
            repeat.inbox.take_result(whole)
            repeat.inbox.finish()

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


class _Following:
    """The block of `LogReader.follow`. No generator: a loop that ends closes all that are open at once, also this one
    while the stream around it leaves it, and would say so with a traceback."""

    def __init__(self, reader: LogReader, inbox: Inbox, origin: Origin) -> None:
        self._reader = reader
        self._inbox = inbox
        self._origin = origin

    async def __aenter__(self) -> None:
        await self._reader._begin_to_feed(self._inbox, self._origin)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader._cease_to_feed(self._inbox, self._origin)


def _a_little_before(ends: Start) -> Start:
    return Start(max(0, ends.tokens - _NUM_RECORDS_BEFORE_END), ends.results)
