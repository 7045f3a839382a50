"""Where in the log a request's stream lies, found from its id alone where the id says so."""

import re
import uuid
from datetime import datetime

from aiokafka import TopicPartition

from headrace.client.reader import Origin
from headrace.client.scout import Scout
from runtime.kafka import partition_for
from schemas.names import Names

# Ids carry the time of the machine that made them, records that of the broker: their clocks may differ by this much.
_CLOCK_MARGIN_MS = 60_000
_UUID7 = 7

# The id of a request that had none: topic, partition and offset of its record.
_PLACE = re.compile(r"^(?P<topic>.+)-(?P<partition>\d+)-(?P<offset>\d+)$")


async def find_origin(
    scout: Scout, names: Names, request_id: str, *, session: str | None, since: datetime | None
) -> Origin:
    """Where to begin to read a stream that may have finished long ago.

    By `since` if given, else by the time in a UUIDv7, else by the record that a place-like id names, else at the
    oldest record that is kept.
    """
    partition = partition_for((session or request_id).encode(), scout.num_partitions)
    time_ms = int(since.timestamp() * 1000) if since else await _time_of(scout, names, request_id)
    start = await (scout.earliest(partition) if time_ms is None else scout.at(partition, time_ms - _CLOCK_MARGIN_MS))
    return Origin(partition, start)


def uuid7_ms(request_id: str) -> int | None:
    """The time in a UUIDv7, in milliseconds since the epoch (RFC 9562, section 5.7); None if it is no UUIDv7."""
    try:
        value = uuid.UUID(request_id)
    except ValueError:
        return None
    return value.int >> 80 if value.version == _UUID7 else None


async def _time_of(scout: Scout, names: Names, request_id: str) -> int | None:
    if (time_ms := uuid7_ms(request_id)) is not None:
        return time_ms
    place = _PLACE.match(request_id)
    if place is None or place["topic"] != names.requests() or int(place["partition"]) >= scout.num_partitions:
        return None
    record = await scout.read(TopicPartition(place["topic"], int(place["partition"])), int(place["offset"]))
    return record.timestamp if record else None
