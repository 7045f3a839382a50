"""The groups that are looked at from outside are those that the roles really form."""

from consumers.gate.takeover import input_topics
from headrace.groups import role_groups
from schemas.channels import ANY_MODEL, channels
from schemas.names import Names

NAMES = Names("ns", 2)


def test_each_topic_is_worked_off_by_the_role_that_is_documented() -> None:
    documented = {channel.topic: list(channel.members) for channel in channels(NAMES) if channel.members}
    groups = role_groups(NAMES, [ANY_MODEL])
    assert {topic: [group.role] for group in groups for topic in group.topics} == documented


def test_the_gate_s_group_and_topics_are_those_of_the_gate() -> None:
    gate = next(group for group in role_groups(NAMES, []) if group.role == "gate")
    assert gate.name == NAMES.gate_group
    assert set(gate.topics) == set(input_topics(NAMES))


def test_the_workers_groups_are_those_of_the_worker() -> None:
    names = [group.name for group in role_groups(NAMES, ["a", "b"]) if group.role == "worker"]
    assert names == [NAMES.worker_group("a"), NAMES.worker_group("b"), NAMES.refusals_group]
