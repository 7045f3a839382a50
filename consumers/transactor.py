"""The one transactional producer of an owned partition: what is decided there is written all or nothing, or fenced.

Whatever waits goes into one transaction and there is no timer: each transaction costs the broker some milliseconds, so
under load they grow instead of becoming more.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerFenced
from aiokafka.structs import OffsetAndMetadata

from runtime.ledger import Ledger
from runtime.logging import get_logger
from schemas.errors import BrokerUnavailable, Fenced

log = get_logger(__name__)

Headers = Sequence[tuple[str, bytes | None]]


class OutRecord(NamedTuple):
    """A record to write."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Position(NamedTuple):
    """One input record."""

    tp: TopicPartition
    offset: int


class _Waiting(NamedTuple):
    records: Sequence[OutRecord]
    closes: Sequence[Position]
    commits: Sequence[TopicPartition]
    done: asyncio.Future[list[int]]


class Transactor:
    """Writes records and closes input records, atomically, for the partitions in `ledgers`.

    Starting it fences every earlier owner with the same transactional id and completes that one's open transaction: so
    it is started *before* committed offsets are read. `metadata` is committed beside each offset; it is asked with the
    offsets that are closed by the same transaction.
    """

    def __init__(
        self,
        producer: AIOKafkaProducer,
        group: str,
        ledgers: dict[TopicPartition, Ledger],
        *,
        metadata: Callable[[TopicPartition, set[int]], str] = lambda *_: "",
    ) -> None:
        self._producer = producer
        self._group = group
        self._ledgers = ledgers
        self._metadata = metadata
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._loop: asyncio.Task[None] | None = None
        self._failure: Exception | None = None

    def start(self) -> None:
        """Begin to take what is submitted."""
        self._loop = asyncio.create_task(self._run())

    async def submit(
        self,
        records: Sequence[OutRecord],
        closes: Sequence[Position] = (),
        *,
        commits: Sequence[TopicPartition] = (),
    ) -> list[int]:
        """Write `records` and close `closes`; returns the records' offsets when all of it is committed.

        The offsets of `commits` are committed also where nothing is closed: that proves that nobody has taken over.

        Raises:
            Fenced: another process owns the partition.
            BrokerUnavailable: the transaction failed; the partition must be taken over anew.
        """
        if self._failure is not None:
            raise self._failure
        done: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Waiting(records, closes, commits, done))
        return await done

    async def stop(self, *, timeout_s: float | None = None) -> None:
        """Commit what waits, then let the producer go. What cannot be written any more is left to the next owner.

        Where the broker does not answer, each of the two is given up after `timeout_s`.
        """
        if self._loop is not None:
            if self._failure is None:
                await _within(self._queue.join(), timeout_s)
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
        await _within(close_producer(self._producer), timeout_s)

    async def _run(self) -> None:
        while self._failure is None:
            waiting = [await self._queue.get()]
            while not self._queue.empty():
                waiting.append(self._queue.get_nowait())
            try:
                await self._commit(waiting)
            except ProducerFenced:
                self._fail(waiting, Fenced(f"another process owns {self._owned()}"))
            except KafkaError as error:
                self._fail(waiting, BrokerUnavailable(f"a transaction for {self._owned()} failed: {error!r}"))
            except asyncio.CancelledError:
                self._fail(waiting, BrokerUnavailable(f"a transaction for {self._owned()} was given up"))
                raise
            except Exception as error:  # noqa: BLE001 (aiokafka asserts its own states; who waits must learn of it)
                self._fail(waiting, error)
            finally:
                for _ in waiting:
                    self._queue.task_done()

    async def _commit(self, waiting: list[_Waiting]) -> None:
        closing: dict[TopicPartition, set[int]] = {tp: set() for item in waiting for tp in item.commits}
        for item in waiting:
            for position in item.closes:
                closing.setdefault(position.tp, set()).add(position.offset)
        await self._producer.begin_transaction()
        sent = [[await self._send(record) for record in item.records] for item in waiting]
        if closing:
            await self._producer.send_offsets_to_transaction(self._offsets(closing), self._group)
        offsets = [[(await future).offset for future in futures] for futures in sent]
        await self._producer.commit_transaction()
        for tp, done in closing.items():
            for offset in done:
                self._ledgers[tp].close(offset)
        for item, written in zip(waiting, offsets, strict=True):
            if not item.done.done():
                item.done.set_result(written)

    async def _send(self, record: OutRecord) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = await self._producer.send(
            record.topic,
            record.value,
            key=record.key,
            partition=record.partition,
            headers=list(record.headers),
        )
        # The transaction may fail before this record's own failure is asked for: unread ones are logged.
        future.add_done_callback(lambda done: _read([done]))
        return future

    def _offsets(self, closing: dict[TopicPartition, set[int]]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {
            tp: OffsetAndMetadata(self._ledgers[tp].would_commit(done), self._metadata(tp, done))
            for tp, done in closing.items()
        }

    def _fail(self, waiting: list[_Waiting], failure: Exception) -> None:
        self._failure = failure
        read_failure(self._producer)
        while not self._queue.empty():
            waiting.append(self._queue.get_nowait())
        for item in waiting:
            if not item.done.done():
                item.done.set_exception(failure)

    def _owned(self) -> str:
        return ", ".join(f"{tp.topic}-{tp.partition}" for tp in self._ledgers)


async def _within(action: Coroutine[Any, Any, None], timeout_s: float | None) -> None:
    try:
        await asyncio.wait_for(action, timeout_s)
    except TimeoutError:
        log.warning("stop_timed_out", timeout_s=timeout_s)


async def close_producer(producer: AIOKafkaProducer) -> None:
    """Stop a producer for good. One that was fenced raises that again when it stops: by then it is nothing new."""
    pending = [future for *_, future in producer._txn_manager._pending_txn_offsets]
    read_failure(producer)
    try:
        await producer.stop()
    except KafkaError as error:
        log.debug("producer_stopped_with_error", error=repr(error))
        await producer.client.close()
    finally:
        _read([*pending, producer._txn_manager.wait_for_transaction_end()])


def read_failure(producer: AIOKafkaProducer) -> None:
    """Read the errors that aiokafka leaves in its own futures when a transaction fails: unread ones are logged.

    They are that of the transaction, and those of records that were still to be sent.
    """
    accumulator = producer._message_accumulator
    unsent = [*accumulator._pending_batches, *(batch for batches in accumulator._batches.values() for batch in batches)]
    left = [producer._txn_manager.wait_for_transaction_end()]
    for batch in unsent:
        left += [batch._drain_waiter, *(future for future, _ in batch._msg_futures)]
    _read(left)


def _read(futures: Sequence[asyncio.Future[Any] | None]) -> None:
    for future in futures:
        if future is not None and future.done() and not future.cancelled():
            future.exception()
