"""What is still to be done: records that the group which works a topic off has not committed.

Not the raw lag: the marker that ends a transaction takes an offset too, and leaves a lag of one behind a topic on which
nothing waits. So what lies between the committed offset and the end is read, and records are counted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from aiokafka import TopicPartition
from aiokafka.errors import GroupCoordinatorNotAvailableError

from headrace.groups import RoleGroup
from runtime.kafka import make_admin, make_consumer, running
from runtime.reading import read_up_to
from runtime.topics import Extent, find_extents
from schemas.settings import KafkaSettings

# More than this is not counted one by one: the few markers among so many do not matter.
_COUNTED_UP_TO = 10_000
_FETCH_MAX_WAIT_MS = 20
_POLL_MS = 20
# The ends are those of committed records, so nothing but the broker itself can hold the reading up.
_PATIENCE_S = 15.0


class PendingWork(msgspec.Struct, kw_only=True, frozen=True):
    """Records of one topic that its group has not done yet."""

    group: str
    topic: str
    num_records: int


async def pending_work(
    kafka: KafkaSettings, groups: Sequence[RoleGroup], counts: Mapping[str, int]
) -> list[PendingWork]:
    """The pending work of each group and topic. `counts` gives the partitions of the topics that exist.

    Raises:
        BrokerUnavailable: what is not done cannot be read.
    """
    partitions = [
        TopicPartition(topic, number)
        for group in groups
        for topic in group.topics
        for number in range(counts.get(topic, 0))
    ]
    clients = (running(make_admin(kafka)), running(make_consumer(kafka, fetch_max_wait_ms=_FETCH_MAX_WAIT_MS)))
    async with clients[0] as admin, clients[1] as consumer:
        committed: dict[TopicPartition, int] = {}
        for group in groups:
            committed |= await _committed(admin, group.name, [tp for tp in partitions if tp.topic in group.topics])
        pending = await _pending(consumer, partitions, committed)
    return [
        PendingWork(
            group=group.name,
            topic=topic,
            num_records=sum(number for tp, number in pending.items() if tp.topic == topic),
        )
        for group in groups
        for topic in group.topics
        if topic in counts
    ]


async def _committed(admin: Any, group: str, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    try:
        commits = await admin.list_consumer_group_offsets(group, partitions=partitions)
    except GroupCoordinatorNotAvailableError:
        return {}  # no group has ever committed on this broker
    return {tp: commit.offset for tp, commit in commits.items() if commit.offset >= 0}


async def _pending(
    consumer: Any, partitions: list[TopicPartition], committed: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    extents = await find_extents(consumer, partitions)
    open_ = {
        tp: Extent(max(extent.start, committed.get(tp, extent.start)), extent.end) for tp, extent in extents.items()
    }
    sizes = {tp: max(0, extent.end - extent.start) for tp, extent in open_.items()}
    return sizes | await _count(consumer, {tp: open_[tp] for tp, size in sizes.items() if 0 < size <= _COUNTED_UP_TO})


async def _count(consumer: Any, extents: Mapping[TopicPartition, Extent]) -> dict[TopicPartition, int]:
    """Read the extents and count the records; markers and aborted records are not delivered."""
    counted = dict.fromkeys(extents, 0)
    for tp, extent in extents.items():
        consumer.seek(tp, extent.start)
        consumer.resume(tp)
    ends = {tp: extent.end for tp, extent in extents.items()}
    async for records in read_up_to(consumer, ends, patience_s=_PATIENCE_S, poll_ms=_POLL_MS):
        for record in records:
            counted[TopicPartition(record.topic, record.partition)] += 1
    return counted
