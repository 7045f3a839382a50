"""Kafka clients as every role makes them: durable, idempotent, reading only what is committed."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import collect_hosts
from aiokafka.helpers import create_ssl_context
from aiokafka.partitioner import murmur2

from runtime.lenient_records import install as read_leniently
from schemas.errors import SettingsError
from schemas.settings import KafkaSettings

Client = TypeVar("Client", AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient)

# The first produce of a transaction is often answered "not enough replicas" while the partition is verified; aiokafka
# then sleeps this long. At its default of 100 ms that is a tail of 120 ms on every result (measured).
_TRANSACTION_RETRY_BACKOFF_MS = 5
_HEARTBEATS_A_SESSION = 10
_MIN_HEARTBEAT_MS = 300

read_leniently()


def partition_for(key: bytes, num_partitions: int) -> int:
    """The partition of a key by Kafka's default partitioner (murmur2), which every Java client uses as well."""
    return int((murmur2(key) & 0x7FFFFFFF) % num_partitions)


def make_producer(settings: KafkaSettings, *, transactional_id: str | None = None) -> AIOKafkaProducer:
    """An idempotent producer with acks=all; with a transactional id it fences earlier ones when it starts."""
    extra: dict[str, Any] = {}
    if transactional_id is not None:
        extra = {
            "transactional_id": transactional_id,
            "transaction_timeout_ms": settings.transaction_timeout_ms,
            "retry_backoff_ms": _TRANSACTION_RETRY_BACKOFF_MS,
        }
    return AIOKafkaProducer(
        **_connection(settings), acks="all", enable_idempotence=True, linger_ms=0, max_batch_size=65_536, **extra
    )


def make_consumer(
    settings: KafkaSettings, *topics: str, group: str | None = None, instance_id: str | None = None, **options: Any
) -> AIOKafkaConsumer:
    """A consumer of committed records that commits nothing by itself."""
    return AIOKafkaConsumer(
        *topics,
        **_connection(settings),
        group_id=group,
        group_instance_id=instance_id,
        enable_auto_commit=False,
        session_timeout_ms=settings.session_timeout_ms,
        heartbeat_interval_ms=max(_MIN_HEARTBEAT_MS, settings.session_timeout_ms // _HEARTBEATS_A_SESSION),
        **{"auto_offset_reset": "earliest", "isolation_level": "read_committed", **options},
    )


def make_admin(settings: KafkaSettings) -> AIOKafkaAdminClient:
    """An admin client."""
    return AIOKafkaAdminClient(**_connection(settings))


@asynccontextmanager
async def running(client: Client) -> AsyncIterator[Client]:
    """Start a client, and close it at the end of the block, whatever happens."""
    try:
        await client.start()
        yield client
    finally:
        await close(client)


async def close(client: AIOKafkaConsumer | AIOKafkaProducer | AIOKafkaAdminClient) -> None:
    """Close a client, whatever state it is in.

    aiokafka's consumer cancels its own tasks and awaits them: if one has not begun, or sleeps before its next try to
    reach a broker that is away, that cancellation comes out of `stop` as if the caller were cancelled.
    """
    if isinstance(client, AIOKafkaAdminClient):
        await client.close()
        return
    try:
        await client.stop()
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is None or current.cancelling():
            raise
        await client._client.close()  # what `stop` did not come to


def _connection(settings: KafkaSettings) -> dict[str, Any]:
    if not settings.bootstrap_servers:
        raise SettingsError(
            "no broker: set kafka.bootstrap_servers (or HEADRACE_KAFKA__BOOTSTRAP_SERVERS), or start a local one with "
            "`headrace up`"
        )
    options: dict[str, Any] = {
        "bootstrap_servers": _readable(settings.bootstrap_servers),
        "request_timeout_ms": settings.request_timeout_ms,
        "security_protocol": settings.security_protocol,
    }
    if "SSL" in settings.security_protocol:
        options["ssl_context"] = _ssl_context(settings.ssl_cafile)
    if "SASL" in settings.security_protocol:
        options |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.sasl_username,
            "sasl_plain_password": settings.sasl_password,
        }
    return options


def _readable(servers: str) -> str:
    try:
        servers.encode()
        collect_hosts(servers)
    except ValueError as error:
        raise SettingsError(
            f"kafka.bootstrap_servers is {servers!r}: write HOST:PORT, with commas between several"
        ) from error
    return servers


def _ssl_context(cafile: str | None) -> ssl.SSLContext:
    context: ssl.SSLContext = create_ssl_context(cafile=cafile)
    return context
