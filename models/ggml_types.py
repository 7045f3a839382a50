"""The tensor types of the GGUF format with their block sizes, so that a tensor's bytes can be checked by its shape."""

import enum
from typing import NamedTuple

from schemas.errors import ModelFileError


class GGMLType(enum.IntEnum):
    """Tensor types that we read, under the numbers that the file format gives them (ggml.h, `enum ggml_type`)."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ4_NL = 20
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    BF16 = 30


class BlockSize(NamedTuple):
    """How many elements one block holds, and in how many bytes."""

    num_elements: int
    num_bytes: int


BLOCK_SIZES = {
    GGMLType.F32: BlockSize(1, 4),
    GGMLType.F16: BlockSize(1, 2),
    GGMLType.Q4_0: BlockSize(32, 18),
    GGMLType.Q4_1: BlockSize(32, 20),
    GGMLType.Q5_0: BlockSize(32, 22),
    GGMLType.Q5_1: BlockSize(32, 24),
    GGMLType.Q8_0: BlockSize(32, 34),
    GGMLType.Q2_K: BlockSize(256, 84),
    GGMLType.Q3_K: BlockSize(256, 110),
    GGMLType.Q4_K: BlockSize(256, 144),
    GGMLType.Q5_K: BlockSize(256, 176),
    GGMLType.Q6_K: BlockSize(256, 210),
    GGMLType.IQ4_NL: BlockSize(32, 18),
    GGMLType.IQ4_XS: BlockSize(256, 136),
    GGMLType.I8: BlockSize(1, 1),
    GGMLType.I16: BlockSize(1, 2),
    GGMLType.I32: BlockSize(1, 4),
    GGMLType.I64: BlockSize(1, 8),
    GGMLType.F64: BlockSize(1, 8),
    GGMLType.BF16: BlockSize(1, 2),
}

# Types that exist and that we do not read: a user should see the name that his quantiser printed, not a number.
UNSUPPORTED_NAMES = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}


def tensor_type(number: int, *, tensor: str) -> GGMLType:
    """The type with this number in the file; ModelFileError, naming it, if we do not read it."""
    try:
        return GGMLType(number)
    except ValueError as error:
        name = UNSUPPORTED_NAMES.get(number, f"number {number}")
        supported = ", ".join(kind.name for kind in GGMLType)
        raise ModelFileError(
            f"Tensor {tensor!r} has the unsupported type {name}; supported are {supported}."
        ) from error
