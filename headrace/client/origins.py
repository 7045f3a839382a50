"""Where in the log a request's stream lies, found from its id alone where the id says so."""

import re
from datetime import datetime

from aiokafka import TopicPartition

from headrace.client.ids import CLOCK_MARGIN_MS, uuid7_ms
from headrace.client.reader import Origin
from headrace.client.scout import Scout
from runtime.kafka import partition_for
from schemas.names import Names

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
    start = await (scout.earliest(partition) if time_ms is None else scout.at(partition, time_ms - CLOCK_MARGIN_MS))
    return Origin(partition, start)


async def _time_of(scout: Scout, names: Names, request_id: str) -> int | None:
    if (time_ms := uuid7_ms(request_id)) is not None:
        return time_ms
    place = _PLACE.match(request_id)
    if place is None or place["topic"] != names.requests() or int(place["partition"]) >= scout.num_partitions:
        return None
    record = await scout.read(TopicPartition(place["topic"], int(place["partition"])), int(place["offset"]))
    return record.timestamp if record else None
