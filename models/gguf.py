"""Reads GGUF files: metadata and tensor positions from a memory map, each size checked before anything is allocated.

The format's own Python reader takes two seconds for a vocabulary of 49,152 tokens; a process starts faster than that.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from models.ggml_types import BLOCK_SIZES, GGMLType, tensor_type
from models.gguf_cursor import Cursor
from schemas.errors import ModelFileError

T = TypeVar("T")

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4

# Far above any published file (a vocabulary of 262,144 tokens with merges is 16 MB of metadata, the largest models
# have a few thousand tensors): a damaged count must not become a large allocation.
MAX_KEYS = 65_536
MAX_TENSORS = 65_536


class TensorInfo(msgspec.Struct, frozen=True):
    """Where one tensor lies. `shape` is row-major as in numpy and torch (the file has it reversed), `offset` counts
    bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLType
    offset: int
    num_bytes: int


class GGUFFile:
    """An open GGUF file.

    `metadata` holds Python scalars, `list[str]` for arrays of strings and read-only numpy arrays for arrays of numbers.
    The memory map stays open as long as this object or an array from `tensor_bytes` lives.
    """

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.metadata: dict[str, object] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._data = data
        try:
            self._parse(Cursor(data))
        except ModelFileError as error:
            raise ModelFileError(f"{path}: {error.message}") from error

    @classmethod
    def open(cls, path: str | Path) -> "GGUFFile":
        """Map and parse the file; ModelFileError if it is missing, damaged, or of a kind that we do not read."""
        path = Path(path)
        try:
            with path.open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise ModelFileError(f"{path}: no such file; set the model's path to a GGUF file.") from error
        except (OSError, ValueError) as error:  # mmap refuses an empty file with ValueError
            raise ModelFileError(f"{path}: cannot be read: {error}.") from error
        return cls(path, data)

    def require(self, key: str, kind: type[T]) -> T:
        """The metadata value of `key`; ModelFileError if it is missing or not of this kind."""
        value = self.get(key, kind)
        if value is None:
            raise ModelFileError(f"{self.path}: the metadata has no {key!r}; convert the model anew with llama.cpp.")
        return value

    def get(self, key: str, kind: type[T]) -> T | None:
        """The metadata value of `key`, or None; ModelFileError if it is not of this kind."""
        value = self.metadata.get(key)
        # bool is an int to isinstance, but a flag where a count is due is a damaged file.
        if value is None or (isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)):
            return value
        raise ModelFileError(f"{self.path}: metadata {key!r} is a {type(value).__name__}, not a {kind.__name__}.")

    def tensor_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """The raw bytes of a tensor: a read-only uint8 view `[num_bytes]` of the map, nothing is copied."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.path}: there is no tensor {name!r}.")
        return np.frombuffer(self._data, dtype=np.uint8, count=info.num_bytes, offset=info.offset)

    def _parse(self, cursor: Cursor) -> None:
        num_tensors, num_keys = _read_header(cursor)
        for _ in range(num_keys):
            key = cursor.key()
            if key in self.metadata:
                raise ModelFileError(f"the metadata key {key!r} appears twice.")
            self.metadata[key] = cursor.value(key)
        if self.metadata.get("split.count", 0) not in (0, 1):
            raise ModelFileError("it is one part of a split file; join them with llama.cpp's `gguf-split --merge`.")
        infos = [_read_tensor_info(cursor) for _ in range(num_tensors)]
        start = _aligned(cursor.position, self._alignment)
        for info in infos:
            self._add_tensor(msgspec.structs.replace(info, offset=start + info.offset))

    @property
    def _alignment(self) -> int:
        value = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(value, int) or value <= 0 or value & (value - 1):
            raise ModelFileError(f"'general.alignment' is {value!r}, not a power of two.")
        return value

    def _add_tensor(self, info: TensorInfo) -> None:
        if info.name in self.tensors:
            raise ModelFileError(f"tensor {info.name!r} appears twice.")
        if info.offset % self._alignment:
            raise ModelFileError(f"tensor {info.name!r} is not aligned to {self._alignment} bytes.")
        if info.offset + info.num_bytes > len(self._data):
            missing = info.offset + info.num_bytes - len(self._data)
            raise ModelFileError(f"it ends {missing} bytes before tensor {info.name!r} does; download it again.")
        self.tensors[info.name] = info


def _read_header(cursor: Cursor) -> tuple[int, int]:
    magic = cursor.take(4)
    if magic != MAGIC:
        raise ModelFileError(f"it starts with {magic!r}, not {MAGIC!r}: this is no GGUF file.")
    version = cursor.u32()
    if version not in SUPPORTED_VERSIONS:
        _refuse_version(version)
    num_tensors, num_keys = cursor.u64(), cursor.u64()
    if num_tensors > MAX_TENSORS or num_keys > MAX_KEYS:
        raise ModelFileError(f"{num_tensors} tensors and {num_keys} metadata keys cannot be right; download it again.")
    return num_tensors, num_keys


def _refuse_version(version: int) -> NoReturn:
    if int.from_bytes(version.to_bytes(4, "little"), "big") in SUPPORTED_VERSIONS:
        raise ModelFileError("it is big-endian; convert the model anew with --bigendian off.")
    supported = " and ".join(map(str, SUPPORTED_VERSIONS))
    raise ModelFileError(f"its GGUF version {version} is not supported; supported are {supported}.")


def _read_tensor_info(cursor: Cursor) -> TensorInfo:
    """One tensor's entry; its offset still counts from the start of the data section."""
    name = cursor.key()
    num_dimensions = cursor.u32()
    if num_dimensions > MAX_DIMENSIONS:
        raise ModelFileError(f"tensor {name!r} has {num_dimensions} dimensions; at most {MAX_DIMENSIONS} are allowed.")
    shape = tuple(reversed([cursor.u64() for _ in range(num_dimensions)]))
    kind = tensor_type(cursor.u32(), tensor=name)
    return TensorInfo(name, shape, kind, cursor.u64(), _num_bytes(name, shape, kind))


def _num_bytes(name: str, shape: tuple[int, ...], kind: GGMLType) -> int:
    block = BLOCK_SIZES[kind]
    row = shape[-1] if shape else 1
    if 0 in shape or row % block.num_elements:
        raise ModelFileError(f"tensor {name!r} has the impossible shape {shape} for {kind.name}.")
    return math.prod(shape) // block.num_elements * block.num_bytes


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
