"""Every block type against the published `gguf` package bit for bit, and against blocks worked out by hand."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest

from pelton.core.errors import InvalidParameterError
from pelton.quant.block_types import BLOCK_TYPES, BlockType, describe_type, list_supported_names
from pelton.quant.dequantize import dequantize, split_groups

TYPES = {block_type.name: block_type for block_type in BLOCK_TYPES.values()}
# Byte positions of the f16 scales in each quantized block, from the structs of ggml.
HALF_POSITIONS = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}


def half(value: float) -> bytes:
    return struct.pack("<e", value)


def make_random_blocks(block_type: BlockType, num_blocks: int) -> np.ndarray:
    """Random bytes whose f16 and f32 numbers are finite."""
    rng = np.random.default_rng(block_type.ggml_type_id)
    if block_type.name == "F32":
        return rng.standard_normal(num_blocks).astype("<f4").view(np.uint8)
    if block_type.name == "F16":
        return rng.standard_normal(num_blocks).astype("<f2").view(np.uint8)
    blocks = rng.integers(0, 256, (num_blocks, block_type.block_bytes), dtype=np.uint8)
    if block_type.name == "BF16":
        blocks[:, 1] &= 0xBF
    for start in HALF_POSITIONS.get(block_type.name, ()):
        scales = rng.standard_normal((num_blocks, 1)).astype("<f2")
        scales[0] = 6e-8  # the smallest subnormal
        scales[1] = 65504
        blocks[:, start : start + 2] = scales.view(np.uint8)
    return blocks.reshape(-1)


@pytest.mark.parametrize("name", TYPES)
def test_sizes_agree_with_the_gguf_package(name: str) -> None:
    block_type = TYPES[name]
    reference = gguf.GGMLQuantizationType[name]
    assert block_type.ggml_type_id == reference.value
    assert (block_type.block_size, block_type.block_bytes) == gguf.GGML_QUANT_SIZES[reference]


@pytest.mark.parametrize("name", TYPES)
def test_random_blocks_agree_with_the_gguf_package_bit_for_bit(name: str) -> None:
    block_type = TYPES[name]
    columns = block_type.block_size * 3
    data = make_random_blocks(block_type, 7 * 3)
    row_bytes = block_type.count_bytes(columns)
    expected = gguf.dequantize(data.reshape(7, row_bytes), gguf.GGMLQuantizationType[name])
    actual = dequantize(data, block_type, (7, columns))
    assert actual.dtype == np.float32
    assert actual.shape == (7, columns)
    np.testing.assert_array_equal(actual.view(np.uint32), expected.astype(np.float32).view(np.uint32))


def test_q4_0_block_by_hand() -> None:
    block = half(0.5) + bytes([0xF0] + [0x88] * 15)
    values = dequantize(np.frombuffer(block, np.uint8), TYPES["Q4_0"], (32,))
    assert values[0] == -4.0  # low nibble 0: 0.5 * (0 - 8)
    assert values[16] == 3.5  # high nibble 15: 0.5 * (15 - 8)
    assert not values[1:16].any()


def test_q4_1_block_by_hand() -> None:
    block = half(0.25) + half(-2.0) + bytes([0x21] + [0] * 15)
    values = dequantize(np.frombuffer(block, np.uint8), TYPES["Q4_1"], (32,))
    assert values[0] == -1.75
    assert values[16] == -1.5
    assert values[1] == -2.0


def test_q5_0_block_takes_its_fifth_bit_from_the_element_number() -> None:
    block = half(1.0) + (1 << 17 | 1).to_bytes(4, "little") + bytes([0x03, 0x40] + [0] * 14)
    values = dequantize(np.frombuffer(block, np.uint8), TYPES["Q5_0"], (32,))
    assert values[0] == 3.0  # 3 + 16 - 16
    assert values[17] == 4.0  # 4 + 16 - 16
    assert values[1] == -16.0


def test_q8_0_block_by_hand() -> None:
    block = half(2.0) + struct.pack("<32b", *range(-16, 16))
    values = dequantize(np.frombuffer(block, np.uint8), TYPES["Q8_0"], (32,))
    assert values.tolist() == [2.0 * i for i in range(-16, 16)]


def test_q6_k_block_by_hand() -> None:
    low, high, scales = bytearray(128), bytearray(64), bytearray(16)
    low[64 + 32 + 5] = 0x0A  # second half, low nibble of byte 37: element 128 + 32 + 5
    high[32 + 5] = 0b0000_1100  # its upper bits are field 1 of byte 5: 3
    scales[(128 + 32 + 5) // 16] = 0xFE  # -2
    block = bytes(low) + bytes(high) + bytes(scales) + half(0.5)
    values = dequantize(np.frombuffer(block, np.uint8), TYPES["Q6_K"], (256,))
    assert values[165] == 0.5 * -2 * (0x3A - 32)
    assert values[160] == 0.5 * -2 * (0 - 32)


def test_q4_k_last_group_uses_the_scale_split_over_two_bytes() -> None:
    header, codes = bytearray(12), bytearray(128)
    header[3] = 0b10 << 6  # top bits of scale 7
    header[7] = 0b01 << 6  # top bits of minimum 7
    header[11] = 0x53  # low nibbles: scale 3, minimum 5
    codes[96] = 0x70  # group 7, element 0
    block = half(1.0) + half(0.5) + bytes(header) + bytes(codes)
    values = dequantize(np.frombuffer(block, np.uint8), TYPES["Q4_K"], (256,))
    assert values[224] == (32 + 3) * 7 - 0.5 * (16 + 5)
    assert values[225] == -0.5 * (16 + 5)
    assert values[0] == 0.0


def test_bf16_is_the_upper_half_of_a_float32() -> None:
    data = np.frombuffer(bytes.fromhex("803f 00c0 807f"), np.uint8)
    assert dequantize(data, TYPES["BF16"], (3,)).tolist() == [1.0, -2.0, float("inf")]


def test_infinite_scale_gives_infinity_and_nan_without_a_warning() -> None:
    block = half(float("inf")) + bytes([0x98] + [0x88] * 15)
    values = dequantize(np.frombuffer(block, np.uint8), TYPES["Q4_0"], (32,))
    assert np.isnan(values[0])
    assert values[16] == np.inf


def test_groups_hold_every_block_type_as_scale_times_code_minus_minimum() -> None:
    for name, positions in HALF_POSITIONS.items():
        data = make_random_blocks(TYPES[name], 2)
        groups = split_groups(data, TYPES[name])
        assert groups.codes.shape[0] == 2
        assert groups.codes[0].size == TYPES[name].block_size
        assert groups.scales.shape == (2, groups.codes.shape[1], 1)
        assert (groups.minima is not None) == (len(positions) == 2)


def test_input_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(InvalidParameterError, match=r"40 x uint8 for Q4_1 \[2, 32\]"):
        dequantize(np.zeros(39, np.uint8), TYPES["Q4_1"], (2, 32))
    with pytest.raises(InvalidParameterError, match="multiple of 256 for Q6_K"):
        dequantize(np.zeros(210, np.uint8), TYPES["Q6_K"], (2, 128))
    with pytest.raises(InvalidParameterError, match="a quantized type"):
        split_groups(np.zeros(4, np.uint8), TYPES["F32"])


def test_type_names_are_known_for_messages() -> None:
    assert describe_type(19) == gguf.GGMLQuantizationType(19).name == "IQ1_S"
    assert describe_type(12345) == "type 12345"
    assert list_supported_names() == "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K"
    for reference in gguf.GGMLQuantizationType:
        # A newer package may name types that appeared later.
        assert describe_type(reference.value) in (reference.name, f"type {reference.value}")
