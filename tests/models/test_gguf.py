import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.ggml_types import BLOCK_SIZES, GGMLType
from models.gguf import GGUFFile
from schemas.errors import ModelFileError
from tests.models.gguf_writer import EMBEDDING, METADATA, write_gguf


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw)) + raw


def header(*, num_tensors: int = 0, num_keys: int = 0, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    return magic + u32(version) + u64(num_tensors) + u64(num_keys)


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int = 0) -> bytes:
    return text(name) + u32(len(shape)) + b"".join(map(u64, shape)) + u32(kind) + u64(offset)


def opened(tmp_path: Path, content: bytes) -> GGUFFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return GGUFFile.open(path)


def refused(tmp_path: Path, content: bytes) -> str:
    with pytest.raises(ModelFileError) as caught:
        opened(tmp_path, content)
    assert "model.gguf" in caught.value.message
    return caught.value.message


def test_metadata_and_tensors_are_those_that_the_formats_own_package_wrote(tmp_path: Path) -> None:
    tensors: dict[str, np.ndarray] = {
        "one": np.arange(12, dtype=np.float32).reshape(3, 4),
        "two": np.arange(64, dtype=np.float16).reshape(2, 32),
        "three": np.arange(7, dtype=np.int8),
    }
    file = GGUFFile.open(write_gguf(tmp_path / "a.gguf", tensors=tensors))
    for key, value in METADATA.items():
        ours = file.metadata[key]
        ours = ours.tolist() if isinstance(ours, np.ndarray) else ours
        assert ours == (pytest.approx(value) if isinstance(value, float) else value)
    assert list(file.tensors) == ["one", "two", "three"]
    for name, data in tensors.items():
        assert file.tensors[name].shape == data.shape
        assert file.tensor_bytes(name).tobytes() == data.tobytes()


def test_quantised_tensors_have_the_bytes_that_the_package_wrote(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((3, 64), dtype=np.float32)
    data = gguf.quantize(values, gguf.GGMLQuantizationType.Q4_1)
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("w", data, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile.open(tmp_path / "a.gguf")
    assert file.tensors["w"].ggml_type is GGMLType.Q4_1
    assert file.tensors["w"].shape == values.shape
    assert file.tensor_bytes("w").tobytes() == data.tobytes()


@pytest.mark.parametrize("kind", list(GGMLType), ids=lambda kind: kind.name)
def test_block_sizes_and_numbers_are_those_of_the_formats_own_package(kind: GGMLType) -> None:
    theirs = gguf.GGMLQuantizationType[kind.name]
    assert theirs.value == kind.value
    assert tuple(BLOCK_SIZES[kind]) == gguf.GGML_QUANT_SIZES[theirs]


def test_a_type_that_the_package_knows_and_we_do_not_read_is_refused_by_its_name(tmp_path: Path) -> None:
    known = {kind.value for kind in GGMLType}
    for theirs in gguf.GGMLQuantizationType:
        if theirs.value not in known:
            message = refused(tmp_path, header(num_tensors=1) + tensor("w", (256,), theirs.value))
            assert theirs.name in message or f"number {theirs.value}" in message
            assert "Q4_1" in message


def test_the_default_models_names_that_users_meet_are_known(tmp_path: Path) -> None:
    assert "IQ2_XXS" in refused(tmp_path, header(num_tensors=1) + tensor("w", (256,), 16))
    assert "number 77" in refused(tmp_path, header(num_tensors=1) + tensor("w", (256,), 77))


def test_scalars_of_every_type_are_read(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    values: dict[str, Any] = {
        "uint8": 200, "int8": -100, "uint16": 60000, "int16": -30000, "uint32": 4 * 10**9, "int32": -(2**31),
        "uint64": 2**63, "int64": -(2**63), "float32": 0.5, "float64": 1e300, "bool": True, "string": "ü😀",
    }  # fmt: skip
    for name, value in values.items():
        getattr(writer, f"add_{name}")(name, value)
    writer.add_array("none", [1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    metadata = GGUFFile.open(tmp_path / "a.gguf").metadata
    assert {name: metadata[name] for name in values} == values
    assert type(metadata["bool"]) is bool


def test_arrays_of_numbers_are_read_only_and_may_be_empty(tmp_path: Path) -> None:
    content = header(num_keys=2) + text("a") + u32(9) + u32(4) + u64(2) + u32(7) + u32(8)
    content += text("b") + u32(9) + u32(4) + u64(0)
    metadata = opened(tmp_path, content).metadata
    array = metadata["a"]
    assert isinstance(array, np.ndarray)
    assert array.tolist() == [7, 8]
    assert not array.flags.writeable
    assert isinstance(metadata["b"], np.ndarray)
    assert metadata["b"].size == 0


def test_version_two_is_read(tmp_path: Path) -> None:
    content = header(num_keys=1, version=2) + text("a") + u32(8) + text("b")
    assert opened(tmp_path, content).metadata == {"a": "b"}


def test_tensor_bytes_are_a_read_only_view_that_outlives_the_file(tmp_path: Path) -> None:
    data = GGUFFile.open(write_gguf(tmp_path / "a.gguf")).tensor_bytes("token_embd.weight")
    assert not data.flags.writeable
    assert not data.flags.owndata
    assert data.tobytes() == EMBEDDING["token_embd.weight"].tobytes()


def test_tensors_lie_where_the_files_own_alignment_says(tmp_path: Path) -> None:
    head = header(num_tensors=1, num_keys=1) + text("general.alignment") + u32(4) + u32(64)
    head += tensor("w", (4,), 24)
    content = head.ljust(-(-len(head) // 64) * 64, b"\0") + b"abcd"
    assert opened(tmp_path, content).tensor_bytes("w").tobytes() == b"abcd"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be read"),
        (b"PK\x03\x04 a zip file", "no GGUF file"),
        (b"GGUF", "in the middle"),
        (header(version=1), "version 1"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
        (header(num_keys=2**63), "cannot be right"),
        (header(num_tensors=2**40), "cannot be right"),
        (header(num_keys=1) + u64(2**63), "cannot be right"),
        (header(num_keys=1) + text("a") + u32(8) + u64(2**63), "in the middle"),
        (header(num_keys=1) + text("a") + u32(9) + u32(8) + u64(2**62), "in the middle"),
        (header(num_keys=1) + text("a") + u32(9) + u32(10) + u64(2**62), "in the middle"),
        (header(num_keys=1) + text("a") + u32(9) + u32(8) + u64(1) + u64(2**63), "in the middle"),
        (header(num_keys=1) + text("a") + u32(9) + u32(9) + u64(1), "unsupported type 9"),
        (header(num_keys=1) + text("a") + u32(13), "unknown type 13"),
        (header(num_keys=1) + text(b"\xff") + u32(0) + b"\0", "not UTF-8"),
        (header(num_keys=1) + text("a") + u32(8) + text(b"\xed\xa0\x80"), "not UTF-8"),
        (header(num_keys=2) + (text("a") + u32(0) + b"\0") * 2, "appears twice"),
        (header(num_keys=1) + text("split.count") + u32(2) + struct.pack("<H", 3), "split"),
        (header(num_keys=1) + text("general.alignment") + u32(4) + u32(0), "power of two"),
        (header(num_keys=1) + text("general.alignment") + u32(4) + u32(48), "power of two"),
        (header(num_keys=1) + text("general.alignment") + u32(8) + text("x"), "power of two"),
        (header(num_tensors=1) + text("w") + u32(5) + u64(1) * 5 + u32(0) + u64(0), "5 dimensions"),
        (header(num_tensors=1) + tensor("w", (2**62, 2**62), 0), "before tensor 'w' does"),
        (header(num_tensors=1) + tensor("w", (0,), 0), "impossible shape"),
        (header(num_tensors=1) + tensor("w", (33,), 3), "impossible shape"),
        (header(num_tensors=1) + tensor("w", (1,), 0, offset=2**63), "before tensor 'w' does"),
        (header(num_tensors=1) + tensor("w", (1,), 0, offset=4) + bytes(64), "not aligned"),
        (header(num_tensors=2) + tensor("w", (1,), 24) * 2 + bytes(64), "appears twice"),
        (header(num_tensors=1) + tensor("w", (64,), 24) + bytes(40), "download it again"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    assert reason in refused(tmp_path, content)


def test_absurd_counts_allocate_nothing(tmp_path: Path) -> None:
    """A sparse file of 8 GiB, so that the counts would fit if only the file's size were looked at."""
    path = tmp_path / "model.gguf"
    with path.open("wb") as file:
        file.write(header(num_keys=1) + text("a") + u32(9) + u32(8) + u64(2**29))
        file.truncate(2**33)
    tracemalloc.start()
    with pytest.raises(ModelFileError, match="metadata is larger"):
        GGUFFile.open(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 2**20


def test_a_file_cut_anywhere_is_refused_and_never_anything_else(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf").read_bytes()
    for length in [*range(2000), *range(2000, len(whole), 997), len(whole) - 1]:
        refused(tmp_path, whole[:length])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("whole") / "whole.gguf").read_bytes()


@settings(max_examples=300)
@given(data=st.data())
def test_a_file_with_any_bytes_changed_opens_or_is_refused(
    data: st.DataObject, whole: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tmp_path = tmp_path_factory.getbasetemp()
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 4600))] = data.draw(st.sampled_from([0, 1, 2, 8, 9, 127, 128, 255]))
    try:
        file = opened(tmp_path, bytes(damaged))
    except ModelFileError:
        return
    for name, info in file.tensors.items():
        assert len(file.tensor_bytes(name)) == info.num_bytes


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    file = GGUFFile.open(write_gguf(tmp_path / "a.gguf"))
    with pytest.raises(ModelFileError, match=r"no 'general\.nothing'"):
        file.require("general.nothing", str)
    with pytest.raises(ModelFileError, match="no tensor 'blk'"):
        file.tensor_bytes("blk")
    with pytest.raises(ModelFileError, match="is a str, not a int"):
        file.require("tokenizer.ggml.model", int)
    assert file.get("general.nothing", int) is None


def test_a_flag_is_no_number(tmp_path: Path) -> None:
    file = GGUFFile.open(write_gguf(tmp_path / "a.gguf", llama__block_count=True))
    with pytest.raises(ModelFileError, match="is a bool"):
        file.require("llama.block_count", int)


def test_a_missing_file_or_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such file"):
        GGUFFile.open(tmp_path / "nothing.gguf")
    with pytest.raises(ModelFileError, match="cannot be read"):
        GGUFFile.open(tmp_path)
