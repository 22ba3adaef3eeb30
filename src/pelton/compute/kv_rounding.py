"""What the KV cache keeps of keys and values, dtype by dtype, in NumPy float32.

The rule and its layout are written in `native/ops/attention/kv_layout.h`; this is the same rule for the reference.
Entry points: `round_values`, `round_keys`, `round_queries`.
"""

from __future__ import annotations

import math

import numpy as np

from pelton.compute.ops import FloatArray

_MAX_F16 = np.float32(65504)
_BLOCK_TOKENS = 16
_UNIT_DIMS = 32
_MAX_ROTATION_DIMS = 256
_INT4_FACTORS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)


def round_values(heads: FloatArray, dtype: str) -> FloatArray:
    """Return float32 `heads` [..., head_dim] as read back from a cache of `dtype`; int8 and int4 scale each head."""
    if dtype == "f32":
        return heads
    if dtype == "f16":
        return heads.astype(np.float16).astype(np.float32)
    if dtype == "bf16":
        return _round_bf16(heads)
    rotated, run = _turn(heads)
    rounded = _round_int8(rotated) if dtype == "int8" else _round_codes(rotated, 8)
    return _rotate_runs(rounded, run)[..., : heads.shape[-1]]


def round_keys(heads: FloatArray, dtype: str) -> FloatArray:
    """Return all keys of a sequence [tokens, kv_heads, head_dim] as read back; int4 keeps 5 bits, around centers."""
    if dtype != "int4":
        return round_values(heads, dtype)
    rotated, run = _turn(heads)
    center = np.zeros(rotated.shape[1:], np.float32)
    for start in range(0, len(heads), _BLOCK_TOKENS):
        block = slice(start, start + _BLOCK_TOKENS)
        without = _round_codes(rotated[block] - center, 16)
        rotated[block] = without + center
        if len(without) == _BLOCK_TOKENS:
            center = _find_center(without, center)
    return _rotate_runs(rotated, run)[..., : heads.shape[-1]]


def round_queries(heads: FloatArray, dtype: str) -> FloatArray:
    """Return scaled float32 queries [..., head_dim] as they meet keys: int8 and int4 caches round them to int8."""
    if dtype not in ("int8", "int4"):
        return heads
    rotated, run = _turn(heads)
    scale = np.abs(rotated).max(axis=-1, keepdims=True) / np.float32(127)
    rounded: FloatArray = np.clip(np.rint(rotated * _invert(scale)), -127, 127) * scale
    return _rotate_runs(rounded, run)[..., : heads.shape[-1]]


def _turn(heads: FloatArray) -> tuple[FloatArray, int]:
    """`heads` padded to whole units of dimensions and rotated, and the dimensions that a rotation mixes."""
    padding = [(0, 0)] * (heads.ndim - 1) + [(0, -heads.shape[-1] % _UNIT_DIMS)]
    padded = np.pad(heads, padding)
    run = math.gcd(padded.shape[-1], _MAX_ROTATION_DIMS)
    return _rotate_runs(padded, run) * np.float32(1 / run), run


def _rotate_runs(x: FloatArray, run: int) -> FloatArray:
    """The Walsh-Hadamard transform, not normalised, of runs of `run` dimensions of the last axis."""
    lanes = np.arange(16)
    runs = x.reshape(*x.shape[:-1], -1, 16)
    total = np.zeros_like(runs)
    for i in range(16):
        signs = np.array([-1.0 if int(i & lane).bit_count() % 2 else 1.0 for lane in lanes], np.float32)
        total = total + runs[..., i : i + 1] * signs
    x = total.reshape(x.shape)
    distance = 16
    while distance < run:
        pairs = x.reshape(*x.shape[:-1], -1, 2, distance)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([first + second, first - second], axis=-2).reshape(x.shape)
        distance *= 2
    return x


def _find_center(without: FloatArray, center: FloatArray) -> FloatArray:
    """The next block's center [kv_heads, dims] from a block's keys, without their own center as read back."""
    total = np.zeros_like(center)
    for token in without:
        total = total + token
    return _round_codes(center + total * np.float32(1 / _BLOCK_TOKENS), 8, (1.0,))


def _round_bf16(heads: FloatArray) -> FloatArray:
    bits = heads.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    values: FloatArray = rounded.view(np.float32)
    return values


def _round_int8(heads: FloatArray) -> FloatArray:
    scale = _to_f16(np.abs(heads).max(axis=-1, keepdims=True) / np.float32(127))
    rounded: FloatArray = np.clip(np.rint(heads * _invert(scale)), -127, 127) * scale
    return rounded


def _round_codes(heads: FloatArray, zero: int, factors: tuple[float, ...] = _INT4_FACTORS) -> FloatArray:
    """Codes from -zero to zero - 1 times the scale of least squared error: a factor times the largest over -zero."""
    highest, lowest = heads.max(axis=-1, keepdims=True), heads.min(axis=-1, keepdims=True)
    largest = np.where(highest >= -lowest, highest, lowest)
    best = np.zeros_like(heads)
    least = np.full_like(largest, np.inf)
    for factor in factors:
        scale = _to_f16(np.float32(factor) * largest / np.float32(-zero))
        rounded = np.clip(np.rint(heads * _invert(scale)), -zero, zero - 1) * scale
        error = _sum_lanes(np.square(heads - rounded))
        is_better = (error < least) | (factor == factors[0])
        best, least = np.where(is_better, rounded, best), np.where(is_better, error, least)
    return best


def _sum_lanes(x: FloatArray) -> FloatArray:
    """The sum over the last axis as kernels take it: 16 lanes in order, then by halves; [..., 1]."""
    lanes = np.zeros((*x.shape[:-1], 16), np.float32)
    for start in range(0, x.shape[-1], 16):
        lanes = lanes + x[..., start : start + 16]
    for width in (8, 4, 2, 1):
        lanes = lanes[..., :width] + lanes[..., width : 2 * width]
    return lanes


def _to_f16(x: FloatArray) -> FloatArray:
    """The nearest finite float16 numbers, as float32."""
    nearest: FloatArray = np.clip(x, -_MAX_F16, _MAX_F16).astype(np.float16).astype(np.float32)
    return nearest


def _invert(scale: FloatArray) -> FloatArray:
    one_over: FloatArray = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    return one_over
