"""Every name on the broker comes from one place, and no two things share one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import SettingsError
from schemas.names import LANES, Lane, Names, check_model_name, lane_of
from schemas.settings import TopicsSettings
from schemas.topics import registry


def test_all_topics_of_the_registry_have_names_of_their_own() -> None:
    specs = registry(Names(), TopicsSettings(), ["a", "b"])
    assert len({spec.name for spec in specs}) == len(specs) == 4 + 2 + 4 + 6


def test_all_topics_have_the_same_number_of_partitions() -> None:
    specs = registry(Names(), TopicsSettings(partitions=5), ["a"])
    assert {spec.partitions for spec in specs} == {5}


def test_all_topics_use_broker_time() -> None:
    assert all(
        spec.configs["message.timestamp.type"] == "LogAppendTime" for spec in registry(Names(), TopicsSettings(), ["a"])
    )


def test_sessions_and_models_are_compacted_and_nothing_else() -> None:
    compacted = {spec.name for spec in registry(Names(), TopicsSettings(), ["a"]) if spec.is_compacted}
    assert compacted == {Names().sessions, Names().models}


def test_a_new_generation_shares_no_name_with_the_old_one() -> None:
    old, new = (
        {spec.name for spec in registry(Names("n", generation), TopicsSettings(), ["a"])} for generation in (1, 2)
    )
    assert not old & new


@pytest.mark.parametrize("lane", LANES)
def test_a_topic_of_the_way_knows_its_lane(lane: Lane) -> None:
    names = Names()
    assert {lane_of(topic) for topic in (names.requests(lane), names.turns(lane), names.batches("m", lane))} == {lane}


@pytest.mark.parametrize("model", ["", "a/b", "none", "m.bulk", "ä", "x\n", "-m", "a" * 101])
def test_a_model_name_that_is_no_topic_name_is_refused(model: str) -> None:
    with pytest.raises(SettingsError, match="model name"):
        check_model_name(model)


@pytest.mark.parametrize("namespace", ["", "a b", "a/b", "x\n"])
def test_a_namespace_that_is_no_topic_name_is_refused(namespace: str) -> None:
    with pytest.raises(SettingsError, match="namespace"):
        Names(namespace)


GROUPS = st.sampled_from([Names().gate_group, Names().worker_group("m"), Names().refusals_group])


@given(st.lists(st.tuples(GROUPS, st.sampled_from(["a", "b"]), st.integers(0, 20))))
def test_transactional_ids_differ_where_group_topic_or_partition_do(owned: list[tuple[str, str, int]]) -> None:
    names = Names()
    ids = {names.transactional_id(group, topic, partition) for group, topic, partition in owned}
    assert len(ids) == len(set(owned))
