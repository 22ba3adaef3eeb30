"""Turn the raw blocks of a tensor into float32 values, slowly and obviously: the meaning of every block type.

Knows one block at a time, nothing about files, models or kernels. Every quantized type is affine per group of
consecutive elements: value = scale * code - minimum. Start at `dequantize`; `split_groups` gives the parts.
Source of the layouts: the `block_*` structs and `dequantize_row_*` functions of ggml (ggml-common.h, ggml-quants.c).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pelton.core.errors import InvalidParameterError
from pelton.quant import block_types
from pelton.quant.block_types import BlockType

_Bytes = npt.NDArray[np.uint8]
_Codes = npt.NDArray[np.int16]
_Floats = npt.NDArray[np.float32]

# Position of each 2-bit field in a byte, lowest first.
_TWO_BIT_SHIFTS = np.array([0, 2, 4, 6], dtype=np.uint8)
_BIT_SHIFTS = np.arange(8, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class AffineGroups:
    """Blocks taken apart: value = scales * codes - minima, group by group.

    `codes` [num_blocks, num_groups, group_size] i16 (signed where the type has no minimum);
    `scales` [num_blocks, num_groups, 1] f32; `minima` the same, or None where the type has none.
    """

    codes: _Codes
    scales: _Floats
    minima: _Floats | None


def dequantize(data: npt.NDArray[np.uint8], block_type: BlockType, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return the values of a tensor, [*shape] f32, from its raw blocks `data`, [num_bytes] u8.

    Raises `InvalidParameterError` if `data` or the last axis of `shape` does not fit `block_type`.
    """
    if shape[-1] % block_type.block_size:
        raise InvalidParameterError(
            "shape", shape, f"a last axis that is a multiple of {block_type.block_size} for {block_type.name}"
        )
    num_bytes = block_type.count_bytes(math.prod(shape))
    if data.dtype != np.uint8 or data.size != num_bytes:
        raise InvalidParameterError(
            "data", f"{data.size} x {data.dtype}", f"{num_bytes} x uint8 for {block_type.name} {list(shape)}"
        )
    raw = np.ascontiguousarray(data).reshape(-1)
    if block_type == block_types.F32:
        return raw.view("<f4").astype(np.float32).reshape(shape)
    if block_type == block_types.F16:
        return raw.view("<f2").astype(np.float32).reshape(shape)
    if block_type == block_types.BF16:
        # bfloat16 is the upper half of a float32.
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    groups = split_groups(raw, block_type)
    # A damaged file may hold infinite scales; what they give is defined (inf, NaN) and not worth a warning.
    with np.errstate(invalid="ignore", over="ignore"):
        values = groups.scales * groups.codes.astype(np.float32)
        if groups.minima is not None:
            values -= groups.minima
    return values.reshape(shape)


def split_groups(data: npt.NDArray[np.uint8], block_type: BlockType) -> AffineGroups:
    """Take raw blocks, [num_blocks * block_bytes] u8, apart into codes, scales and minima.

    Raises `InvalidParameterError` for a type that is not quantized.
    """
    split = _SPLITTERS.get(block_type)
    if split is None:
        allowed = ", ".join(quantized.name for quantized in _SPLITTERS)
        raise InvalidParameterError("block_type", block_type.name, f"a quantized type: {allowed}")
    return split(data.reshape(-1, block_type.block_bytes))


def _get_half(blocks: _Bytes, start: int) -> _Floats:
    """Return the f16 stored at byte `start` of every block, as f32 [num_blocks, 1, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)[:, :, None]


def _get_nibbles(packed: _Bytes) -> _Codes:
    """Return [n, m, 2 * k] codes from [n, m, k] bytes: all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.int16)


def _get_fifth_bits(blocks: _Bytes, start: int) -> _Codes:
    """Return 16 where bit i of the 32-bit number at byte `start` is set, else 0: [num_blocks, 1, 32]."""
    bits = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
    return bits.astype(np.int16)[:, None, :] << 4


def _split_q4_0(blocks: _Bytes) -> AffineGroups:
    return AffineGroups(_get_nibbles(blocks[:, None, 2:]) - 8, _get_half(blocks, 0), None)


def _split_q4_1(blocks: _Bytes) -> AffineGroups:
    return AffineGroups(_get_nibbles(blocks[:, None, 4:]), _get_half(blocks, 0), -_get_half(blocks, 2))


def _split_q5_0(blocks: _Bytes) -> AffineGroups:
    codes = _get_nibbles(blocks[:, None, 6:]) | _get_fifth_bits(blocks, 2)
    return AffineGroups(codes - 16, _get_half(blocks, 0), None)


def _split_q5_1(blocks: _Bytes) -> AffineGroups:
    codes = _get_nibbles(blocks[:, None, 8:]) | _get_fifth_bits(blocks, 4)
    return AffineGroups(codes, _get_half(blocks, 0), -_get_half(blocks, 2))


def _split_q8_0(blocks: _Bytes) -> AffineGroups:
    return AffineGroups(blocks[:, None, 2:].view(np.int8).astype(np.int16), _get_half(blocks, 0), None)


def _get_two_bit_codes(packed: _Bytes) -> _Codes:
    """Return [n, 256] codes from [n, 64] bytes: each 32 bytes hold four runs of 32 codes, lowest bits first."""
    fields = packed.reshape(-1, 2, 1, 32) >> _TWO_BIT_SHIFTS[:, None] & 3
    return fields.reshape(-1, 256).astype(np.int16)


def _split_q2_k(blocks: _Bytes) -> AffineGroups:
    packed_scales = blocks[:, :16, None]
    codes = _get_two_bit_codes(blocks[:, 16:80]).reshape(-1, 16, 16)
    scales = _get_half(blocks, 80) * (packed_scales & 15).astype(np.float32)
    minima = _get_half(blocks, 82) * (packed_scales >> 4).astype(np.float32)
    return AffineGroups(codes, scales, minima)


def _split_q3_k(blocks: _Bytes) -> AffineGroups:
    # Bit i of high_mask[l] belongs to element 32 * i + l; a clear bit takes 4 off the 2-bit code.
    high_bits = (blocks[:, None, :32] >> _BIT_SHIFTS[:, None] & 1).reshape(-1, 256)
    codes = _get_two_bit_codes(blocks[:, 32:96]) + (high_bits.astype(np.int16) << 2) - 4
    packed = blocks[:, 96:108]
    low_bits = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    top_bits = (packed[:, None, 8:] >> _TWO_BIT_SHIFTS[:, None] & 3).reshape(-1, 16)
    scale_codes = (low_bits | top_bits << 4).astype(np.float32) - 32
    return AffineGroups(codes.reshape(-1, 16, 16), _get_half(blocks, 108) * scale_codes[:, :, None], None)


def _get_k4_scales(blocks: _Bytes) -> tuple[_Floats, _Floats]:
    """Return scales and minima, [num_blocks, 8, 1] each, of the header that Q4_K and Q5_K share.

    Twelve bytes hold eight 6-bit scales and minima: the first four of each lie in the low bits of bytes 0-3 and 4-7;
    the last four have their low nibbles in bytes 8-11 and their top two bits above the first four.
    """
    first_scales, first_minima, nibbles = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first_scales & 63, nibbles & 15 | first_scales >> 6 << 4], axis=1)
    minima = np.concatenate([first_minima & 63, nibbles >> 4 | first_minima >> 6 << 4], axis=1)
    return (
        _get_half(blocks, 0) * scales.astype(np.float32)[:, :, None],
        _get_half(blocks, 2) * minima.astype(np.float32)[:, :, None],
    )


def _split_q4_k(blocks: _Bytes) -> AffineGroups:
    codes = _get_nibbles(blocks[:, 16:].reshape(-1, 4, 32))
    return AffineGroups(codes.reshape(-1, 8, 32), *_get_k4_scales(blocks))


def _split_q5_k(blocks: _Bytes) -> AffineGroups:
    low_bits = _get_nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    # Bit i of high[l] belongs to element l of group i.
    high_bits = (blocks[:, None, 16:48] >> _BIT_SHIFTS[:, None] & 1).astype(np.int16)
    return AffineGroups(low_bits | high_bits << 4, *_get_k4_scales(blocks))


def _split_q6_k(blocks: _Bytes) -> AffineGroups:
    low_bits = _get_nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
    codes = (low_bits | _get_two_bit_codes(blocks[:, 128:192]) << 4) - 32
    scale_codes = blocks[:, 192:208].view(np.int8).astype(np.float32)[:, :, None]
    return AffineGroups(codes.reshape(-1, 16, 16), _get_half(blocks, 208) * scale_codes, None)


_SPLITTERS: dict[BlockType, Callable[[_Bytes], AffineGroups]] = {
    block_types.Q8_0: _split_q8_0,
    block_types.Q4_0: _split_q4_0,
    block_types.Q4_1: _split_q4_1,
    block_types.Q5_0: _split_q5_0,
    block_types.Q5_1: _split_q5_1,
    block_types.Q2_K: _split_q2_k,
    block_types.Q3_K: _split_q3_k,
    block_types.Q4_K: _split_q4_k,
    block_types.Q5_K: _split_q5_k,
    block_types.Q6_K: _split_q6_k,
}
