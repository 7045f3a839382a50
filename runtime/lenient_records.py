"""Reads records whose header names are not UTF-8: brokers let them pass, and aiokafka's consumer stops at one for ever.

The fault is raised from `getmany`, for all partitions, again and again: one record of one client would end every role
that reads it. Java's client replaces such bytes; so does this, escaped (`\\xff`), so that nothing is lost to the eye.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, SupportsIndex, overload

from aiokafka.consumer import fetcher
from aiokafka.record.default_records import _DefaultRecordBatchPy
from aiokafka.record.memory_records import MemoryRecords

# Of a batch as it lies in the log: base offset (int64), then the length of all that follows (int32).
_LENGTH_AT = 8
_OVERHEAD = 12


def install() -> None:
    """Let every consumer of this process read such records. Rests on aiokafka 0.14.0, which is pinned."""
    fetcher.MemoryRecords = LenientRecords


class LenientRecords:
    """The batches of one fetched partition; stands in for aiokafka's `MemoryRecords`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._records = MemoryRecords(data)

    def size_in_bytes(self) -> int:
        """The size of what was fetched."""
        return int(self._records.size_in_bytes())

    def has_next(self) -> bool:
        """Whether there is another whole batch."""
        return bool(self._records.has_next())

    def next_batch(self) -> "LenientBatch":
        """The next batch."""
        start, length_at = self._position, self._position + _LENGTH_AT
        length = int.from_bytes(self._data[length_at : length_at + 4], "big", signed=True)
        self._position = start + _OVERHEAD + length
        return LenientBatch(self._records.next_batch(), memoryview(self._data)[start : self._position])


class LenientBatch:
    """One batch: aiokafka's own, until it stops at a header name."""

    def __init__(self, batch: Any, data: memoryview) -> None:
        self._batch = batch
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        num_read = 0
        try:
            for record in self._batch:
                yield record
                num_read += 1
        except UnicodeDecodeError:
            yield from islice(_read_leniently(self._data), num_read, None)


def _read_leniently(data: memoryview) -> Iterator[Any]:
    """The same records by aiokafka's decoder in Python, on a buffer whose slices decode whatever they hold."""
    batch = _DefaultRecordBatchPy(data)
    batch._maybe_uncompress()
    batch._buffer = _LenientBuffer(batch._buffer)
    return iter(batch)


class _LenientBuffer(bytearray):
    @overload
    def __getitem__(self, key: SupportsIndex) -> int: ...

    @overload
    def __getitem__(self, key: "slice[Any, Any, Any]") -> bytearray: ...

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return found if isinstance(found, int) else _LenientBuffer(found)

    def decode(self, encoding: str = "utf-8", errors: str = "backslashreplace") -> str:
        return super().decode(encoding, errors)
