"""A gate owns a partition number on all of its topics: however many gates there are, no number is split between two."""

from typing import Any

from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from consumers.gate.role import ASSIGNOR
from consumers.gate.takeover import input_topics
from schemas.names import Names

TOPICS = input_topics(Names())


class Cluster:
    """A cluster in which all topics have one number of partitions."""

    def __init__(self, num_partitions: int) -> None:
        self._partitions = set(range(num_partitions))

    def partitions_for_topic(self, _: str) -> set[int]:
        return self._partitions


@given(st.integers(1, 24), st.integers(1, 8))
def test_every_number_has_one_owner(num_partitions: int, num_gates: int) -> None:
    members = {f"gate-{n}": ConsumerProtocolMemberMetadata(0, TOPICS, b"") for n in range(num_gates)}
    assigned: dict[str, Any] = ASSIGNOR.assign(Cluster(num_partitions), members)
    owners: dict[int, set[str]] = {}
    num_assigned = 0
    for member, assignment in assigned.items():
        for _, partitions in assignment.assignment:
            num_assigned += len(partitions)
            for number in partitions:
                owners.setdefault(number, set()).add(member)
    assert num_assigned == len(TOPICS) * num_partitions
    assert all(len(found) == 1 for found in owners.values())
