"""Kafka clients: the partition of a key, and what is refused before a connection is made."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.kafka import make_admin, make_consumer, make_producer, partition_for
from schemas.errors import SettingsError
from schemas.settings import KafkaSettings

# Apache Kafka, clients/src/test/java/org/apache/kafka/common/utils/UtilsTest.java, testMurmur2.
JAVA_MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "java_hash"), JAVA_MURMUR2.items())
@pytest.mark.parametrize("num_partitions", [1, 2, 6, 12, 1000])
def test_a_key_s_partition_is_that_of_the_java_client(key: bytes, java_hash: int, num_partitions: int) -> None:
    assert partition_for(key, num_partitions) == (java_hash & 0x7FFFFFFF) % num_partitions


@given(st.binary(max_size=200), st.integers(1, 10_000))
def test_a_partition_is_always_one_that_exists(key: bytes, num_partitions: int) -> None:
    assert 0 <= partition_for(key, num_partitions) < num_partitions


@pytest.mark.parametrize("make", [make_producer, make_consumer, make_admin])
async def test_without_a_broker_the_error_says_how_to_get_one(make: object) -> None:
    assert callable(make)
    for servers in (None, ""):
        with pytest.raises(SettingsError, match="headrace up"):
            make(KafkaSettings(bootstrap_servers=servers))


@pytest.mark.parametrize("make", [make_producer, make_consumer, make_admin])
@pytest.mark.parametrize("servers", [":::", "host:x", "a:9092,b:x", "\udcff:9092"])
async def test_servers_that_nobody_can_read_are_a_wrong_setting(make: object, servers: str) -> None:
    assert callable(make)
    with pytest.raises(SettingsError, match=r"kafka\.bootstrap_servers is .*write HOST:PORT"):
        make(KafkaSettings(bootstrap_servers=servers))
