"""Faust's Kafka transport, adapted. With `faust_app.py` all that knows the inside of faust-streaming (pinned).

What is changed, and why (each was measured on 0.15.3):
- The clients are the ones that every role uses: read_committed (Faust's own reads records of aborted transactions
  unless it is itself transactional) and idempotent.
- What may be committed is decided by `claims.py` alone. Faust acknowledges what an agent raised on, takes transaction
  markers for gaps, loses the place of records that it drops in a rebalance, and skips a commit while another runs.
- On revocation what is under way is finished and committed, in a bounded time, and the rest is forgotten.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from mode.threads import WorkerThread

from pipeline.claims import Claims, Partition, Taken
from runtime.kafka import close, make_consumer, make_producer
from runtime.logging import get_logger

if TYPE_CHECKING:
    from pipeline.faust_app import KafkaApp

log = get_logger(__name__)
# What Faust's services say of themselves belongs with Faust: `runtime.logging` shows its warnings only.
FAUST_LOG = logging.getLogger("faust.headrace")

_MAX_POLL_RECORDS = 500
# A fetch under way does not see that a held partition was released: while one is held, fetches are short.
_POLL_WHILE_HELD_S = 0.05
# While all partitions wait for object storage there is nothing to poll, and no reason to leave the group.
_MAX_POLL_INTERVAL_MS = 24 * 3600 * 1000
# Well below the time in which the group waits for its members.
_DRAIN_ON_REVOKE_S = 2.0


class _ReadNothing(dict[Any, Any]):
    """In place of Faust's read offsets: it then lists no gaps and drops no record that it thinks it has seen."""

    def __missing__(self, key: Any) -> None:
        return None

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is noted."""


class _DaemonThread(WorkerThread):
    """Does not keep a process alive whose broker has gone away."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.daemon = True


class _ConsumerThread(driver.AIOKafkaConsumerThread):
    """The Kafka client's thread. What it hands out is opened in the same step, what it seeks is claimed anew."""

    app: "KafkaApp"
    consumer: "_Consumer"
    logger = FAUST_LOG

    def on_crash(self, msg: str, *fmt: Any, **kwargs: Any) -> None:
        log.error("consumer_thread_crashed", exc_info=True)

    async def on_thread_stop(self) -> None:
        """Close the client as every role does: its own `stop` may raise what looks like our cancellation."""
        await super(driver.AIOKafkaConsumerThread, self).on_thread_stop()
        if self._consumer is not None:
            await close(self._consumer)

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        return make_consumer(
            self.app.kafka,
            group=self.app.conf.id,
            max_poll_records=_MAX_POLL_RECORDS,
            max_poll_interval_ms=_MAX_POLL_INTERVAL_MS,
        )

    async def seek_to_committed(self) -> Mapping[TP, int]:
        committed: Mapping[TP, int] = await self.call_thread(self._seek_to_committed)
        return committed

    async def _seek_to_committed(self) -> dict[TP, int]:
        client, claims = self._ensure_consumer(), self.consumer.claims
        committed = {}
        for tp in client.assignment():
            offset = await client.committed(tp)
            start = await client.position(tp) if offset is None else offset
            client.seek(tp, start)
            claims.renew(tp, start)
            committed[TP(tp.topic, tp.partition)] = offset
        return committed

    async def _fetch_records(self, consumer: AIOKafkaConsumer, *args: Any, **kwargs: Any) -> Any:
        records = await super()._fetch_records(consumer, *args, **kwargs)
        claims = self.consumer.claims
        # A fetch may outlast a rebalance. What Faust would drop then, and with it lose, is put back.
        taken = claims.take(records) if self.consumer.flow_active else {}
        for tp in records.keys() - taken.keys():
            consumer.seek(tp, records[tp][0].offset)
        claims.advance(_positions(consumer))
        return taken


def _positions(client: AIOKafkaConsumer) -> dict[Any, int]:
    """Where the client stands in each partition, now: behind markers and aborted records, unlike the last record."""
    assignment = client._subscription.subscription.assignment
    states = {tp: assignment.state_value(tp) for tp in assignment.tps} if assignment else {}
    return {tp: state.position for tp, state in states.items() if state.has_valid_position}


class _Consumer(driver.Consumer):
    """Faust's consumer with the claims in place of acknowledgements."""

    app: "KafkaApp"
    logger = FAUST_LOG

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.claims = Claims()
        self._committing = asyncio.Lock()
        super().__init__(*args, **kwargs)
        self._read_offset = _ReadNothing()

    async def commit(self, topics: Any = None, start_new_transaction: Any = True) -> bool:
        """Commit what the claims say. Faust's own does nothing where another commit is under way, also at the end."""
        async with self._committing:
            claims = {TP(*claim.partition): claim for claim in self.claims.current()}
            offsets = {tp: offset for tp, claim in claims.items() if (offset := claim.to_commit()) is not None}
            if not offsets or not await self._commit(offsets):
                return False
            for tp, offset in offsets.items():
                claims[tp].committed(offset)
            return True

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Finish and commit what is under way, then let go of it."""
        await super().on_partitions_revoked(revoked)
        try:
            async with asyncio.timeout(_DRAIN_ON_REVOKE_S):
                await self.app.work.drain()
        except TimeoutError:
            log.info("revoked_while_waiting", partitions=len(revoked))
        await self.commit()
        partitions = [Partition(tp.topic, tp.partition) for tp in revoked]
        self.claims.give_up(partitions)
        self.app.work.give_up(partitions)

    def _new_consumer_thread(self) -> _ConsumerThread:
        return _ConsumerThread(self, loop=self.loop, beacon=self.beacon, Worker=_DaemonThread)

    async def _wait_next_records(self, timeout: float) -> Any:
        """Faust seeks back where the flow was stopped meanwhile, too late: after the next assignment has begun."""
        records, active_partitions = await super()._wait_next_records(timeout)
        return records if self.flow_active else None, active_partitions

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> Any:
        limit = _POLL_WHILE_HELD_S if self._buffered_partitions else timeout
        return await super()._getmany(active_partitions, limit)

    def _to_message(self, tp: TP, record: Taken[Any]) -> Any:
        message = super()._to_message(tp, record.record)
        message.claim = record.claim  # type: ignore[attr-defined] # read again in `input_record`
        return message


class _Producer(driver.Producer):
    """Faust's producer around the client that every role uses."""

    app: "KafkaApp"
    logger = FAUST_LOG

    def _new_producer(self, transactional_id: str | None = None) -> AIOKafkaProducer:
        return make_producer(self.app.kafka, transactional_id=transactional_id)


class KafkaTransport(driver.Transport):
    """Makes both for an app."""

    Consumer = _Consumer
    Producer = _Producer
