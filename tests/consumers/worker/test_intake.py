"""What a worker takes from a record of its input, whatever the record is."""

from aiokafka.structs import ConsumerRecord

from consumers.worker.intake import MAX_DEAD_BYTES, dead_letter, take
from runtime.headers import record_headers
from runtime.tracing import Headers
from schemas.batches import Batch, Refusal
from schemas.codec import BATCH, DEAD_LETTER
from schemas.errors import MalformedRecord
from schemas.settings import DEFAULT_MODEL, Settings
from tests.consumers.worker.builders import ACCEPTED_AT_MS, envelope, sequence

TOPIC = f"headrace.batches.{DEFAULT_MODEL}"


def record(
    value: bytes | None, *, key: bytes | None = b"r1", headers: Headers = (), topic: str = TOPIC
) -> ConsumerRecord:
    return ConsumerRecord(
        topic=topic,
        partition=1,
        offset=7,
        timestamp=ACCEPTED_AT_MS,
        timestamp_type=1,
        key=key,
        value=value,
        checksum=None,
        serialized_key_size=len(key or b""),
        serialized_value_size=len(value or b""),
        headers=tuple(headers),
    )


def ours(**changes: str) -> Headers:
    return record_headers("batch", envelope(**changes), source="pipeline")


def test_a_batch_brings_its_members() -> None:
    taken = take(record(BATCH.encode(Batch(members=[sequence("r1"), sequence("r2")]))), Settings())
    assert [member.envelope.request_id for member in taken.members] == ["r1", "r2"]
    assert (taken.error, taken.num_endings) == (None, 2)


def test_an_empty_batch_is_done_with_one_write() -> None:
    taken = take(record(BATCH.encode(Batch(members=[]))), Settings())
    assert (taken.members, taken.error, taken.num_endings) == ([], None, 1)


def test_a_broken_record_whose_headers_name_a_request_ends_it_and_is_buried() -> None:
    taken = take(record(b"\xff", headers=ours()), Settings())
    (member,) = taken.members
    assert isinstance(member, Refusal)
    assert (member.envelope.request_id, member.model, member.stage) == ("r1", DEFAULT_MODEL, "worker")
    assert member.error.code == "malformed_record"
    assert (taken.error is not None, taken.num_endings) == (True, 2)


def test_of_a_topic_without_a_model_the_model_is_not_known() -> None:
    (member,) = take(record(b"\xff", headers=ours(), topic="headrace.batches.none"), Settings()).members
    assert member.model == ""


def test_a_broken_record_that_names_nobody_is_only_buried() -> None:
    for headers in ([], [("ce_id", None)], [("ce_id", b"\xff")]):
        taken = take(record(None, headers=headers), Settings())
        assert taken.error is not None
        assert (taken.members, taken.num_endings) == ([], 1)


def test_a_bundle_holds_the_record_whole() -> None:
    broken = record(b"\xff\xfe{", key=b"\xff", headers=[("a", None), ("b", b"\xff")])
    letter = dead_letter(broken, MalformedRecord("garbage"))
    assert (letter.key, letter.value, letter.headers) == (b"\xff", b"\xff\xfe{", [("a", None), ("b", b"\xff")])
    assert DEAD_LETTER.decode(DEAD_LETTER.encode(letter)) == letter


def test_a_bundle_fits_a_record_whatever_its_record_was() -> None:
    large = [
        record(b"x" * MAX_DEAD_BYTES, key=b"k" * 16_000),
        record(b"x" * 1_000_000),
        record(b"x", key=b"k" * 500_000, headers=[("h" * 100_000, b"v" * 300_000)]),
        record(b"x" * MAX_DEAD_BYTES, headers=[(f"{number}", b"v") for number in range(1_000)]),
        record(None, headers=[("\x00" * 50_000, None)]),
    ]
    for broken in large:
        letter = dead_letter(broken, MalformedRecord("garbage " * 1_000))
        around = len(letter.key or b"") + sum(len(name) + len(value or b"") for name, value in letter.headers)
        assert len(DEAD_LETTER.encode(letter)) + around < 1_000_000
        assert (letter.topic, letter.partition, letter.offset) == (TOPIC, 1, 7)
