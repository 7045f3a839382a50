"""Reading a stretch of the log to its end, without waiting for ever where it does not come.

Under read_committed an open transaction of somebody else holds a reader back until it ends or is timed out by the
broker; a partition without a leader gives nothing at all. Both look alike from here: nothing moves.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from schemas.errors import BrokerUnavailable

_POLL_MS = 200


async def read_up_to(
    consumer: Any, ends: Mapping[TopicPartition, int], *, patience_s: float, poll_ms: int = _POLL_MS
) -> AsyncGenerator[list[ConsumerRecord], None]:
    """The records of each partition from where the consumer stands to its end (exclusive), in batches.

    Partitions that are done are paused, so that what lies behind their ends is not fetched.

    Raises:
        BrokerUnavailable: no partition has moved for `patience_s`.
    """
    left, moved_at_s = dict(ends), time.monotonic()
    positions: dict[TopicPartition, int] = {}
    while True:
        now = await _positions(consumer, left, patience_s)
        if now != positions:
            positions, moved_at_s = now, time.monotonic()
        done = {tp for tp, end in left.items() if positions[tp] >= end}
        consumer.pause(*done)
        left = {tp: end for tp, end in left.items() if tp not in done}
        if not left:
            return
        if time.monotonic() - moved_at_s > patience_s:
            raise _stuck(left, positions, patience_s)
        for tp, records in (await consumer.getmany(*left, timeout_ms=poll_ms)).items():
            yield [record for record in records if record.offset < left[tp]]


async def _positions(consumer: Any, left: Mapping[TopicPartition, int], patience_s: float) -> dict[TopicPartition, int]:
    """Where the consumer stands. It asks the broker first where it has just been sent to a beginning."""
    try:
        async with asyncio.timeout(patience_s):
            return {tp: await consumer.position(tp) for tp in left}
    except TimeoutError:
        raise _stuck(left, dict.fromkeys(left, -1), patience_s) from None


def _stuck(left: Mapping[TopicPartition, int], positions: Mapping[TopicPartition, int], patience_s: float) -> Exception:
    where = ", ".join(f"{tp.topic}-{tp.partition} at {positions[tp]} of {end}" for tp, end in sorted(left.items())[:3])
    return BrokerUnavailable(
        f"nothing was read for {patience_s:g} s: {where}; a transaction stays open there, or a partition has no leader"
    )
