"""The Faust app over our transport: fixed options, no tables, folders or topics of its own, agents that see bytes."""

import asyncio
from collections.abc import Callable
from typing import Any

import faust
from faust.serializers.schemas import Schema
from faust.tables.manager import TableManager
from faust.types import TP
from yarl import URL

from pipeline.claims import Claims, Partition
from pipeline.intake import InputRecord, Intake
from pipeline.pack import Packed
from pipeline.transport import FAUST_LOG, KafkaTransport
from schemas.errors import SettingsError
from schemas.settings import KafkaSettings

# The transport overrides methods that are nobody's interface: with another version it could lose turns in silence.
FAUST_VERSION = "0.15.3"
_COMMIT_INTERVAL_S = 1.0


class _Tables(TableManager):
    """Faust waits a second here for tables to be declared; this app has none."""

    logger = FAUST_LOG

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

    logger = FAUST_LOG

    def __init__(self, group: str, kafka: KafkaSettings, *, fail: Callable[[BaseException], None]) -> None:
        if faust.__version__ != FAUST_VERSION:
            raise SettingsError(f"faust-streaming {FAUST_VERSION} is needed, and {faust.__version__} is installed")
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
        """Take nothing more; returns when all that was taken is acknowledged."""
        self.consumer.stop_flow()
        self.flow_control.suspend()
        await self.work.drain()

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
        return KafkaTransport(self.conf.broker_consumer, self)

    def _new_producer_transport(self) -> Any:
        return KafkaTransport(self.conf.broker_producer, self)

    def _create_directories(self) -> None:
        """No tables, so no folders."""


def input_record(message: Any) -> InputRecord:
    """A message of Faust as our stages take it."""
    return InputRecord(
        claim=message.claim,
        offset=message.offset,
        timestamp_ms=int((message.timestamp or 0.0) * 1000),
        key=message.key,
        value=message.value,
        headers=message.headers,
    )
