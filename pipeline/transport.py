"""Faust's Kafka transport, adapted: the one file that knows the inside of faust-streaming 0.15.3 (pinned).

What is changed, and why (each was measured on 0.15.3):
- The clients are the ones that every role uses: read_committed (Faust's own reads records of aborted transactions
  unless it is itself transactional) and idempotent.
- What may be committed is decided by `pipeline/claims.py` alone. Faust acknowledges what an agent raised on, takes
  every transaction marker for a gap in its lists, and loses the place of records that it drops.
- On revocation what is under way is finished and committed, in a bounded time, and the rest is forgotten.
- A partition whose outbox is full is not read on, by the mechanism that Faust has for its own full buffers; `pause`
  would drop what was fetched already.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import faust
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from faust.serializers.schemas import Schema
from faust.tables.manager import TableManager
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from mode.threads import WorkerThread
from yarl import URL

from pipeline.claims import Claims, Partition, Taken
from pipeline.intake import InputRecord, Intake
from pipeline.pack import Packed
from runtime.kafka import make_consumer, make_producer
from runtime.logging import get_logger
from schemas.settings import KafkaSettings

log = get_logger(__name__)
# What Faust's services say of themselves belongs with Faust: `runtime.logging` shows its warnings only.
_faust_log = logging.getLogger("faust.headrace")

FAUST_VERSION = "0.15.3"

_MAX_POLL_RECORDS = 500
# A fetch under way does not see that a held partition was released: while one is held, fetches are short.
_POLL_WHILE_HELD_S = 0.05
_COMMIT_INTERVAL_S = 1.0
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
    logger = _faust_log

    def on_crash(self, msg: str, *fmt: Any, **kwargs: Any) -> None:
        log.error("consumer_thread_crashed", exc_info=True)

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        return make_consumer(self.app.kafka, group=self.app.conf.id, max_poll_records=_MAX_POLL_RECORDS)

    async def seek_to_committed(self) -> Mapping[TP, int]:
        committed: Mapping[TP, int] = await self.call_thread(self._seek_to_committed)
        return committed

    async def _seek_to_committed(self) -> dict[TP, int]:
        client, claims = self._ensure_consumer(), self.consumer.claims
        committed = {}
        for tp in client.assignment():
            offset = await client.committed(tp)
            # aiokafka's own call leaves a partition without a commit where it is, also if records of it were dropped.
            start = claims.first_handed_out(tp, await client.position(tp)) if offset is None else offset
            client.seek(tp, start)
            claims.renew(tp, start)
            committed[TP(tp.topic, tp.partition)] = offset
        return committed

    async def _fetch_records(self, consumer: AIOKafkaConsumer, *args: Any, **kwargs: Any) -> Any:
        claims = self.consumer.claims
        taken = claims.take(await super()._fetch_records(consumer, *args, **kwargs))
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
    logger = _faust_log

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.claims = Claims()
        super().__init__(*args, **kwargs)
        self._read_offset = _ReadNothing()

    async def force_commit(self, topics: Any = None, start_new_transaction: Any = True) -> bool:
        """Commit what the claims say."""
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
    logger = _faust_log

    def _new_producer(self, transactional_id: str | None = None) -> AIOKafkaProducer:
        return make_producer(self.app.kafka, transactional_id=transactional_id)


class _Transport(driver.Transport):
    Consumer = _Consumer
    Producer = _Producer


class _Tables(TableManager):
    """Faust waits a second here for tables to be declared; this app has none."""

    logger = _faust_log

    async def on_start(self) -> None:
        await self._update_channels()
        await self.recovery.start()


class _Raw(Schema[Any, Any]):
    """Passes records on as they are: what cannot be decoded is our stage's affair, not an agent's crash."""

    def compile(self, app: Any, **kwargs: Any) -> Any:
        async def decode(message: Any, *, propagate: bool = False) -> Any:
            return app.create_event(message.key, message.value, message.headers, message)

        return decode


class KafkaApp(faust.App):
    """A Faust app over this transport. It takes no options from outside and writes nothing to the current folder."""

    logger = _faust_log

    def __init__(self, group: str, kafka: KafkaSettings, *, fail: Callable[[BaseException], None]) -> None:
        self.kafka = kafka
        self.work: Intake
        self._fail = fail
        super().__init__(
            group,
            broker=[URL(f"aiokafka://{server}") for server in (kafka.bootstrap_servers or "").split(",")],
            store="memory://",
            TableManager=_Tables,
            web_enabled=False,
            stream_wait_empty=False,
            producer_linger=0,
            topic_allow_declare=False,
            topic_disable_leader=True,
            consumer_auto_offset_reset="earliest",
            broker_commit_interval=_COMMIT_INTERVAL_S,
        )

    def raw_topic(self, *names: str) -> Any:
        """Topics whose records reach the agent as they are, also those that cannot be decoded."""
        return self.topic(*names, schema=_Raw())

    async def send_record(self, record: Packed, partition: int) -> "asyncio.Future[Any]":
        """Hand a record to the producer. What is returned is done when the broker has acknowledged it."""
        sent: Any = self.producer.send(record.topic, record.key, record.value, partition, None, record.headers)
        acknowledged: asyncio.Future[Any] = await sent
        return acknowledged

    async def finish(self) -> None:
        """Take nothing more; returns when all that was taken is acknowledged and committed."""
        self.consumer.stop_flow()
        self.flow_control.suspend()
        await self.work.drain()
        await self.consumer.commit()

    @property
    def claims(self) -> Claims:
        """What this process has taken and may commit."""
        claims: Claims = self.consumer.claims  # type: ignore[attr-defined] # it is a _Consumer
        return claims

    def hold(self, partition: Partition) -> None:
        """Read no more of this partition for now; what was fetched still comes."""
        self.consumer.on_buffer_full(TP(*partition))

    def release(self, partition: Partition) -> None:
        """Read on."""
        self.consumer.on_buffer_drop(TP(*partition))

    async def _on_agent_error(self, agent: Any, exc: BaseException) -> None:
        """Faust would start the agent again behind the record that it stumbled on."""
        self._fail(exc)

    def _new_transport(self) -> Any:
        return _Transport(self.conf.broker_consumer, self)

    def _new_producer_transport(self) -> Any:
        return _Transport(self.conf.broker_producer, self)

    def _create_directories(self) -> None:
        """No tables, so no folders."""


def input_record(message: Any) -> InputRecord:
    """A message of Faust as our stages take it."""
    return InputRecord(
        claim=message.claim,
        offset=message.offset,
        timestamp_ms=int(message.timestamp * 1000),
        key=message.key,
        value=message.value,
        headers=message.headers,
    )
