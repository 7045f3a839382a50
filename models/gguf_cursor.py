"""A position in the bytes of a GGUF file that refuses to read past the end, or more than metadata may sensibly be."""

import mmap
import struct

import numpy as np

from schemas.errors import ModelFileError

STRING = 8
ARRAY = 9

# The numbers of the format's value types; strings and arrays are read by their own methods.
SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
NUMPY_TYPES = {number: np.dtype(scalar.format) for number, scalar in SCALARS.items()}

U32 = SCALARS[4]
U64 = SCALARS[10]

# The largest published vocabularies with merges take 16 MB. Python objects are up to ten times the bytes they are
# read from, so this bounds what a hostile file can make us allocate.
MAX_METADATA_BYTES = 64 * 2**20
MAX_KEY_BYTES = 65_535  # the format's own limit


class Cursor:
    """Reads little-endian values one after the other; ModelFileError at the first that does not fit."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self.position = 0
        self._data = data
        self._end = min(len(data), MAX_METADATA_BYTES)

    def take(self, num_bytes: int) -> bytes:
        """The next bytes, copied."""
        start = self._advance(num_bytes)
        return self._data[start : self.position]

    def u32(self) -> int:
        """The next unsigned 32-bit number."""
        value: int = U32.unpack_from(self._data, self._advance(4))[0]
        return value

    def u64(self) -> int:
        """The next unsigned 64-bit number."""
        value: int = U64.unpack_from(self._data, self._advance(8))[0]
        return value

    def key(self) -> str:
        """The name of a metadata entry or tensor."""
        length = self.u64()
        if length > MAX_KEY_BYTES:
            raise ModelFileError(f"a name of {length} bytes cannot be right; download it again.")
        return self._text(self.take(length))

    def value(self, key: str) -> object:
        """The typed value that follows the name `key`."""
        number = self.u32()
        if number == STRING:
            return self._text(self.take(self.u64()))
        if number == ARRAY:
            return self._array(key)
        return self._scalar(key, number)

    def _scalar(self, key: str, number: int) -> object:
        scalar = SCALARS.get(number)
        if scalar is None:
            raise ModelFileError(f"metadata {key!r} has the unknown type {number}.")
        return scalar.unpack_from(self._data, self._advance(scalar.size))[0]

    def _array(self, key: str) -> object:
        number, count = self.u32(), self.u64()
        if number == STRING:
            return self._strings(count)
        dtype = NUMPY_TYPES.get(number)
        if dtype is None:  # nested arrays: the format allows them, llama.cpp and published files do not
            raise ModelFileError(f"metadata {key!r} is an array of the unsupported type {number}.")
        start = self._advance(count * dtype.itemsize)
        return np.frombuffer(self._data, dtype=dtype, count=count, offset=start)

    def _strings(self, count: int) -> list[str]:
        # Written out, not built from u64() and take(): a vocabulary with merges is 100,000 strings.
        self._check_room(count * U64.size)
        data, position, end, unpack_from = self._data, self.position, self._end, U64.unpack_from
        strings = []
        for _ in range(count):
            start = position + U64.size
            if start > end:
                self._refuse()
            position = start + unpack_from(data, position)[0]
            if position > end:
                self._refuse()
            strings.append(data[start:position])
        self.position = position
        return [self._text(raw) for raw in strings]

    def _advance(self, num_bytes: int) -> int:
        self._check_room(num_bytes)
        start = self.position
        self.position += num_bytes
        return start

    def _check_room(self, num_bytes: int) -> None:
        if num_bytes > self._end - self.position:
            self._refuse()

    def _refuse(self) -> None:
        if self._end == len(self._data):
            raise ModelFileError("it ends in the middle of its metadata; download it again.")
        raise ModelFileError(f"its metadata is larger than {MAX_METADATA_BYTES} bytes, which cannot be right.")

    @staticmethod
    def _text(raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise ModelFileError(f"the string {raw[:40]!r} in its metadata is not UTF-8.") from error
