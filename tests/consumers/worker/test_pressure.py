"""Which partitions wait while the worker is full."""

from aiokafka import TopicPartition

from consumers.worker.pressure import full_partitions

PLAIN, BULK = TopicPartition("batches.m", 0), TopicPartition("batches.m.bulk", 0)


def test_nobody_waits_while_there_is_room() -> None:
    assert full_partitions({PLAIN: 3, BULK: 2}, 8) == set()


def test_all_wait_when_the_worker_is_full() -> None:
    assert full_partitions({PLAIN: 8, BULK: 0}, 8) == {PLAIN, BULK}


def test_bulk_leaves_the_last_places_to_interactive_requests() -> None:
    assert full_partitions({PLAIN: 0, BULK: 6}, 8) == {BULK}
    assert full_partitions({PLAIN: 7, BULK: 0}, 8) == set()


def test_one_place_is_enough_for_bulk_to_move() -> None:
    assert full_partitions({PLAIN: 0, BULK: 0}, 1) == set()
