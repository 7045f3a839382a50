"""Two requests of Kafka that aiokafka 0.14 lacks: features (KIP-584) and the quorum with its clock (KIP-836).

They go through aiokafka's connections, so that TLS and SASL are as everywhere. Neither changes anything.
"""

from io import BytesIO
from typing import Any, NamedTuple

from aiokafka.errors import for_code
from aiokafka.protocol.api import Request, RequestStruct, Response, ResponseHeader_v0
from aiokafka.protocol.types import CompactArray, CompactString, Int16, Int32, Int64, Schema, TaggedFields

from headrace import __version__
from schemas.errors import BrokerUnavailable

_OK = 0
_SUPPORTED_FEATURES_TAG = 0
_METADATA_TOPIC, _METADATA_PARTITION = "__cluster_metadata", 0


class BrokerFeatures(NamedTuple):
    """What one broker can do: the APIs by their keys, and the levels of its features."""

    api_keys: frozenset[int]
    levels: dict[str, int]


class _FeaturesResponse(Response):  # type: ignore[misc]  # aiokafka publishes no types
    API_KEY = 18
    API_VERSION = 3
    SCHEMA = Schema(
        ("error_code", Int16),
        (
            "api_keys",
            CompactArray(("api_key", Int16), ("min_version", Int16), ("max_version", Int16), ("tags", TaggedFields)),
        ),
        ("throttle_time_ms", Int32),
        ("tags", TaggedFields),
    )


class _FeaturesRequestV3(RequestStruct):  # type: ignore[misc]  # aiokafka publishes no types
    API_KEY = 18
    API_VERSION = 3
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _FeaturesResponse
    SCHEMA = Schema(
        ("client_software_name", CompactString()), ("client_software_version", CompactString()), ("tags", TaggedFields)
    )

    def parse_response_header(self, read_buffer: BytesIO) -> Any:
        # This one response keeps the old header for ever (KIP-511): a client reads it before it knows any version.
        return ResponseHeader_v0.decode(read_buffer)


class _FeaturesRequest(Request[_FeaturesRequestV3]):  # type: ignore[misc]  # aiokafka publishes no types
    API_KEY = 18

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class("headrace", __version__, {})


_FEATURE_RANGES = CompactArray(
    ("name", CompactString()), ("min_level", Int16), ("max_level", Int16), ("tags", TaggedFields)
)

_REPLICA_STATES = CompactArray(
    ("replica_id", Int32),
    ("log_end_offset", Int64),
    ("last_fetch_timestamp", Int64),
    ("last_caught_up_timestamp", Int64),
    ("tags", TaggedFields),
)


class _QuorumResponse(Response):  # type: ignore[misc]  # aiokafka publishes no types
    API_KEY = 55
    API_VERSION = 1
    SCHEMA = Schema(
        ("error_code", Int16),
        (
            "topics",
            CompactArray(
                ("topic_name", CompactString()),
                (
                    "partitions",
                    CompactArray(
                        ("partition_index", Int32),
                        ("error_code", Int16),
                        ("leader_id", Int32),
                        ("leader_epoch", Int32),
                        ("high_watermark", Int64),
                        ("current_voters", _REPLICA_STATES),
                        ("observers", _REPLICA_STATES),
                        ("tags", TaggedFields),
                    ),
                ),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _QuorumRequestV1(RequestStruct):  # type: ignore[misc]  # aiokafka publishes no types
    API_KEY = 55
    API_VERSION = 1
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _QuorumResponse
    SCHEMA = Schema(
        (
            "topics",
            CompactArray(
                ("topic_name", CompactString()),
                ("partitions", CompactArray(("partition_index", Int32), ("tags", TaggedFields))),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _QuorumRequest(Request[_QuorumRequestV1]):  # type: ignore[misc]  # aiokafka publishes no types
    API_KEY = 55

    def build(self, request_struct_class: Any) -> Any:
        return request_struct_class([(_METADATA_TOPIC, [(_METADATA_PARTITION, {})], {})], {})


async def read_features(admin: Any, node_id: int) -> BrokerFeatures:
    """What a broker supports. `admin` is a started admin client.

    Raises:
        NotImplementedError, IncompatibleBrokerVersion: the broker is older than the request (Kafka 2.4).
        KafkaError: it does not answer.
    """
    response = await admin._client.send(node_id, _FeaturesRequest())
    _raise_for(response.error_code)
    raw = response.tags.get(_SUPPORTED_FEATURES_TAG)
    ranges = _FEATURE_RANGES.decode(BytesIO(raw)) if raw else []
    return BrokerFeatures(
        frozenset(api_key for api_key, *_ in response.api_keys), {name: highest for name, _, highest, _ in ranges}
    )


async def read_quorum_clock_ms(admin: Any, node_id: int) -> int:
    """The wall clock of the cluster's active controller, in ms since the epoch: it stamps its own entry with "now".

    Raises:
        NotImplementedError, IncompatibleBrokerVersion: the broker is older than the request (Kafka 3.4).
        KafkaError: it does not answer, or we may not ask.
        BrokerUnavailable: it knows no leader now.
    """
    response = await admin._client.send(node_id, _QuorumRequest())
    _raise_for(response.error_code)
    for _, partitions, _ in response.topics:
        for _, code, leader_id, _, _, voters, *_ in partitions:
            _raise_for(code)
            for replica_id, _, _, now_ms, _ in voters:
                if replica_id == leader_id and now_ms > 0:
                    return int(now_ms)
    raise BrokerUnavailable("the cluster tells of no active controller")


def _raise_for(code: int) -> None:
    if code != _OK:
        raise for_code(code)(f"error {code}")
