"""Records with header names of any bytes are read, and all the others with them."""

import time
from typing import Any

import pytest
from aiokafka.consumer import fetcher
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

import runtime.kafka
from runtime.lenient_records import LenientRecords

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


class Name(str):
    """A header's name that a client writes as any bytes."""

    def encode(self, *_: object) -> bytes:
        return b"\xff\xfe name"


def batch(*headers: list[tuple[str, bytes | None]], compression: int = 0) -> bytes:
    """A record batch as it lies in the log; one record for each list of headers."""
    builder = _DefaultRecordBatchBuilderPy(
        magic=2,
        compression_type=compression,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for number, names in enumerate(headers):
        builder.append(number, int(time.time() * 1000), b"key", b"value %d" % number, names)
    return bytes(builder.build())


def read(data: bytes) -> list[Any]:
    records = LenientRecords(data)
    found = []
    while records.has_next():
        one = records.next_batch()
        assert one.validate_crc()
        found += list(one)
    return found


GOOD: list[tuple[str, bytes | None]] = [("good", b"1"), ("none", None)]
BAD: list[tuple[str, bytes | None]] = [(Name("bad"), b"\xff"), ("good", None)]


@pytest.mark.parametrize("compression", [0, GZIP, SNAPPY, LZ4, ZSTD])
def test_a_record_with_such_a_name_is_read_and_so_are_those_around_it(compression: int) -> None:
    found = read(batch(GOOD, BAD, GOOD, BAD, compression=compression))
    assert [record.offset for record in found] == [0, 1, 2, 3]
    assert [record.value for record in found] == [b"value 0", b"value 1", b"value 2", b"value 3"]
    assert [record.key for record in found] == [b"key"] * 4
    assert found[0].headers == found[2].headers == GOOD
    assert found[1].headers == found[3].headers == [("\\xff\\xfe name", b"\xff"), ("good", None)]


def test_batches_after_such_a_record_are_read() -> None:
    assert len(read(batch(BAD) + batch(GOOD, GOOD) + batch(BAD, GOOD))) == 5


def test_a_batch_that_is_cut_off_is_left_out() -> None:
    whole = batch(BAD, GOOD)
    assert len(read(whole + whole[:-1])) == 2
    assert read(b"") == []


def test_every_consumer_that_we_make_reads_them() -> None:
    assert runtime.kafka.make_consumer is not None
    assert fetcher.MemoryRecords is LenientRecords
