"""Which partitions wait while the worker is full. Pure.

Bulk never takes the last places, so that an interactive request always finds one.
"""

from collections.abc import Mapping

from aiokafka import TopicPartition

from schemas.names import lane_of

# Of all places, those that bulk requests may take.
_BULK_SHARE = 0.75


def full_partitions(num_open: Mapping[TopicPartition, int], max_in_flight: int) -> set[TopicPartition]:
    """The partitions that must wait, given how many requests of each are under way."""
    if sum(num_open.values()) >= max_in_flight:
        return set(num_open)
    bulk = {tp for tp in num_open if lane_of(tp.topic) == "bulk"}
    is_bulk_full = sum(num_open[tp] for tp in bulk) >= max(1, int(max_in_flight * _BULK_SHARE))
    return bulk if is_bulk_full else set()
