"""What is published is what the code does: the files are current, and schema and codec accept the same records."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator

from runtime.headers import REROUTED_FROM, record_headers
from schemas import asyncapi, codec, examples, json_schema, publish
from schemas.envelope import Envelope
from schemas.errors import RequestError
from schemas.json_schema import PUBLISHED, PublishedRecords
from schemas.names import Names
from schemas.settings import TopicsSettings
from schemas.topics import registry

DATA = Path(__file__).parent.parent / "data"

DECODERS: dict[str, Callable[[bytes], Any]] = {
    "requests.json": codec.decode_request,
    "tokens.json": codec.JOURNAL.decode,
    "results.json": codec.RESULT.decode,
    "sessions.json": codec.SESSION.decode,
    "control.json": codec.CONTROL.decode,
    "models.json": codec.MODEL.decode,
    "dead-letters.json": codec.DEAD_LETTER.decode,
    "session-turn.json": codec.SESSION_TURN.decode,
}
VALIDATORS = {records.file: Draft202012Validator(json_schema.document(records)) for records in PUBLISHED}

CASES = [
    (records, example) for records in PUBLISHED for kind in records.kinds for example in examples.examples_of(kind)
]
EACH_EXAMPLE = pytest.mark.parametrize(
    ("records", "example"), CASES, ids=[f"{records.file}-{type(example).__name__}" for records, example in CASES]
)
EACH_PLACE = pytest.mark.parametrize("records", PUBLISHED, ids=lambda records: records.file)


CLAIM = {"object": "headrace/claims/default/2026-01-01/" + "0" * 64, "sha256": "0" * 64, "num_bytes": 700_000}


def without_kind(example: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in json_schema.to_json(example).items() if name != "kind"}


def test_the_files_checked_in_are_what_the_code_publishes(tmp_path: Path) -> None:
    fresh = {path.name: path.read_text() for path in publish.publish(tmp_path)}
    checked_in = {path.name: path.read_text() for path in publish.FOLDER.iterdir()}
    assert checked_in.keys() == fresh.keys()
    stale = [name for name in fresh if fresh[name] != checked_in[name]]
    assert not stale, "renew them with `python -m schemas.publish`"


@EACH_PLACE
def test_a_published_schema_is_itself_valid(records: PublishedRecords) -> None:
    Draft202012Validator.check_schema(json_schema.document(records))


def test_every_kind_that_travels_as_json_is_published_with_an_example() -> None:
    published = {kind for records in PUBLISHED for kind in records.kinds}
    assert published == {type(example) for example in examples.ALL}
    assert DECODERS.keys() == {records.file for records in PUBLISHED}


@EACH_EXAMPLE
def test_a_record_that_we_encode_fits_the_published_schema_and_decodes_to_itself(
    records: PublishedRecords, example: msgspec.Struct
) -> None:
    value = msgspec.json.encode(example)
    VALIDATORS[records.file].validate(json.loads(value))
    decoded = DECODERS[records.file](value)
    assert (decoded.request if records is json_schema.REQUESTS else decoded) == example


@pytest.mark.parametrize(
    ("body", "is_request"),
    [
        pytest.param(without_kind(examples.CHAT), True, id="chat without kind"),
        pytest.param(without_kind(examples.COMPLETION), True, id="completion without kind"),
        pytest.param(without_kind(examples.EMBEDDING), True, id="embedding without kind"),
        pytest.param({**without_kind(examples.CHAT), "kind": None}, True, id="kind null"),
        pytest.param({**without_kind(examples.COMPLETION), "a_field_of_tomorrow": [1]}, True, id="unknown field"),
        pytest.param({**without_kind(examples.CHAT), "kind": "completion"}, False, id="kind of another body"),
        pytest.param({**without_kind(examples.COMPLETION), "messages": []}, False, id="broken messages by a prompt"),
        pytest.param({**without_kind(examples.EMBEDDING), "prompt": None}, False, id="broken prompt by an input"),
        pytest.param({"model": "m"}, False, id="no body"),
        pytest.param({"model": "m", "kind": "chat", "claim": CLAIM}, True, id="messages in an object"),
        pytest.param({"model": "m", "kind": "embedding", "claim": CLAIM}, True, id="input in an object"),
        pytest.param({**without_kind(examples.CHAT), "claim": CLAIM}, True, id="other fields in an object"),
        pytest.param({"model": "m", "claim": CLAIM}, False, id="claim without kind"),
        pytest.param({"model": "m", "kind": "chat", "claim": None}, False, id="no claim"),
        pytest.param({"model": "m", "kind": "chat", "claim": {**CLAIM, "sha256": "0"}}, False, id="claim without hash"),
    ],
)
def test_the_kind_of_a_request_may_be_told_by_its_body_alone(body: dict[str, Any], is_request: bool) -> None:
    assert accepted_by_codec("requests.json", body) is is_request
    assert VALIDATORS["requests.json"].is_valid(body) is is_request


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    # 1.0 is an integer to JSON Schema and to our JSON decoders, but not to `decode_request`.
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer())
    | st.sampled_from(
        ["", "chat", "delta/1", "user", "alice", "a b", "stop", "bulk", "x" * 201, "YQ", "YQ==", "abcd\n"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "type", "text"]), inner),
    max_leaves=4,
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container within a JSON value, with each of its keys or indices."""
    for key, inner in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(inner, dict | list):
            yield from places(inner)


@st.composite
def changed_records(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A real record with one place removed or replaced, or a field added."""
    records, example = draw(st.sampled_from(CASES))
    record = copy.deepcopy(json_schema.to_json(example))
    fields = [field.encode_name for kind in records.kinds for field in msgspec.structs.fields(kind)]
    change = draw(st.sampled_from(["remove", "replace", "add"]))
    if change == "add":
        record[draw(st.sampled_from(fields))] = draw(JSON_VALUES)
    else:
        container, key = draw(st.sampled_from(list(places(record))))
        if change == "remove":
            del container[key]
        else:
            container[key] = draw(JSON_VALUES)
    return records.file, record


def accepted_by_codec(file: str, record: dict[str, Any]) -> bool:
    try:
        DECODERS[file](msgspec.json.encode(record))
    except RequestError:
        return False
    return True


@given(changed=changed_records())
def test_schema_and_codec_accept_and_refuse_the_same_records(changed: tuple[str, dict[str, Any]]) -> None:
    file, record = changed
    assert VALIDATORS[file].is_valid(record) == accepted_by_codec(file, record)


ASYNCAPI = asyncapi.document()
ASYNCAPI_SCHEMA = DATA / "asyncapi" / "asyncapi-3.0.0.json"


def test_the_asyncapi_document_is_valid_by_the_official_schema() -> None:
    errors = [
        f"{error.json_path}: {error.message}"
        for error in Draft7Validator(json.loads(ASYNCAPI_SCHEMA.read_text())).iter_errors(ASYNCAPI)
    ]
    assert not errors


def test_every_reference_of_the_asyncapi_document_leads_somewhere() -> None:
    references = [container[key] for container, key in places(ASYNCAPI) if key == "$ref"]
    assert references
    for reference in references:
        found: Any = ASYNCAPI
        for part in reference.removeprefix("#/").split("/"):
            found = found[part]


def test_the_asyncapi_document_tells_each_topic_as_the_registry_has_it() -> None:
    specs = registry(Names(), TopicsSettings(), ["model"])
    told = {channel["address"].format(model="model"): channel for channel in ASYNCAPI["channels"].values()}
    assert told.keys() == {spec.name for spec in specs}
    for spec in specs:
        binding = told[spec.name]["bindings"]["kafka"]
        assert binding["partitions"] == spec.partitions
        assert binding["replicas"] == spec.replication_factor
        assert binding["topicConfiguration"]["cleanup.policy"] == [spec.configs["cleanup.policy"]]
        assert str(binding["topicConfiguration"].get("retention.ms")) == str(spec.configs.get("retention.ms"))
        assert spec.key in told[spec.name]["description"]


@pytest.mark.parametrize(
    "example",
    [example for example in examples.ALL if example is not examples.TURN_OBJECT],
    ids=lambda example: type(example).__name__,
)
def test_the_payload_schemas_of_the_asyncapi_document_hold_under_draft_7(example: msgspec.Struct) -> None:
    name = type(example).__name__
    schema = {"$ref": f"#/components/schemas/{name}", "components": ASYNCAPI["components"]}
    Draft7Validator(schema).validate(json_schema.to_json(example))


def test_the_headers_that_we_write_are_the_headers_that_are_told() -> None:
    envelope = Envelope(request_id="r", key="r", accepted_at_ms=0, deadline_ms=1, traceparent="t")
    written = [name for name, _ in record_headers("delta", envelope, source="worker")]
    told = ASYNCAPI["components"]["schemas"]
    assert told["RecordHeaders"]["required"] == written
    assert REROUTED_FROM in told["RequestHeaders"]["properties"]
