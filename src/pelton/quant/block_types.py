"""The weight block types of GGUF files: name, id in the file, elements and bytes per block.

Plain facts, written once; knows nothing about files, tensors or arithmetic. Start at `BLOCK_TYPES`.
Source: the `ggml_type` enumeration and the `block_*` structs of ggml (ggml.h, ggml-common.h).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockType:
    """One storage type: `block_size` consecutive elements of a row take `block_bytes` bytes."""

    name: str
    ggml_type_id: int
    block_size: int
    block_bytes: int

    def count_bytes(self, num_elements: int) -> int:
        """Return the bytes of `num_elements` elements, which must be a multiple of `block_size`."""
        return num_elements // self.block_size * self.block_bytes


F32 = BlockType("F32", 0, 1, 4)
F16 = BlockType("F16", 1, 1, 2)
Q4_0 = BlockType("Q4_0", 2, 32, 18)
Q4_1 = BlockType("Q4_1", 3, 32, 20)
Q5_0 = BlockType("Q5_0", 6, 32, 22)
Q5_1 = BlockType("Q5_1", 7, 32, 24)
Q8_0 = BlockType("Q8_0", 8, 32, 34)
Q2_K = BlockType("Q2_K", 10, 256, 84)
Q3_K = BlockType("Q3_K", 11, 256, 110)
Q4_K = BlockType("Q4_K", 12, 256, 144)
Q5_K = BlockType("Q5_K", 13, 256, 176)
Q6_K = BlockType("Q6_K", 14, 256, 210)
BF16 = BlockType("BF16", 30, 1, 2)

BLOCK_TYPES: dict[int, BlockType] = {
    block_type.ggml_type_id: block_type
    for block_type in (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K)
}

# Types a file may name that Pelton does not implement; only for readable messages.
OTHER_TYPE_NAMES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    34: "TQ1_0",
    35: "TQ2_0",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}


def describe_type(ggml_type_id: int) -> str:
    """Return the name ggml gives a type id, or "type <id>" for an id nobody has defined."""
    if ggml_type_id in BLOCK_TYPES:
        return BLOCK_TYPES[ggml_type_id].name
    return OTHER_TYPE_NAMES.get(ggml_type_id, f"type {ggml_type_id}")


def list_supported_names() -> str:
    """Return the names of all implemented types as one comma-separated phrase."""
    return ", ".join(block_type.name for block_type in BLOCK_TYPES.values())
