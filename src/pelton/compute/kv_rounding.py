"""What the KV cache keeps of keys and values, dtype by dtype, in NumPy float32.

The rule and its layout are written in `native/ops/attention/kv_layout.h`; this is the same rule for the reference.
Entry points: `round_values`, `round_keys`.
"""

from __future__ import annotations

import math

import numpy as np

from pelton.compute.ops import FloatArray

_MAX_F16 = np.float32(65504)


_BLOCK_TOKENS = 16
_MAX_ROTATION_DIMS = 256


def round_values(heads: FloatArray, dtype: str) -> FloatArray:
    """Return float32 `heads` [..., head_dim] as read back from a cache of `dtype`; int8 and int4 scale each head."""
    if dtype == "f32":
        return heads
    if dtype == "f16":
        return heads.astype(np.float16).astype(np.float32)
    if dtype == "bf16":
        return _round_bf16(heads)
    return _round_int8(heads) if dtype == "int8" else _round_int4(heads)


def round_keys(heads: FloatArray, dtype: str) -> FloatArray:
    """Return all keys of a sequence [tokens, kv_heads, head_dim] as read back: int4 rotates and centers them first."""
    if dtype != "int4":
        return round_values(heads, dtype)
    head_dim = heads.shape[-1]
    padded = np.pad(heads, ((0, 0), (0, 0), (0, -head_dim % 16)))
    run = math.gcd(padded.shape[-1], _MAX_ROTATION_DIMS)
    rotated = _rotate_runs(padded, run) * np.float32(1 / run)
    center = np.zeros(rotated.shape[1:], np.float32)
    for start in range(0, len(heads), _BLOCK_TOKENS):
        block = slice(start, start + _BLOCK_TOKENS)
        without = _round_int4(rotated[block] - center)
        rotated[block] = without + center
        if len(without) == _BLOCK_TOKENS:
            center = _find_center(without, center)
    return _rotate_runs(rotated, run)[..., :head_dim]


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
    """The next block's center [kv_heads, head_dim] from a block's keys, without their own center as read back."""
    total = np.zeros_like(center)
    for token in without:
        total = total + token
    mean = center + total * np.float32(1 / _BLOCK_TOKENS)
    scale = np.abs(mean).max(axis=-1, keepdims=True) / np.float32(127)
    rounded: FloatArray = np.clip(np.rint(mean * _invert(scale)), -127, 127) * scale
    return rounded


def _round_bf16(heads: FloatArray) -> FloatArray:
    bits = heads.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    values: FloatArray = rounded.view(np.float32)
    return values


def _round_int8(heads: FloatArray) -> FloatArray:
    scale = _to_f16(np.abs(heads).max(axis=-1, keepdims=True) / np.float32(127))
    rounded: FloatArray = np.clip(np.rint(heads * _invert(scale)), -127, 127) * scale
    return rounded


def _round_int4(heads: FloatArray) -> FloatArray:
    minimum = _to_f16(heads.min(axis=-1, keepdims=True))
    scale = _to_f16((heads.max(axis=-1, keepdims=True) - minimum) / np.float32(15))
    rounded: FloatArray = np.clip(np.rint((heads - minimum) * _invert(scale)), 0, 15) * scale + minimum
    return rounded


def _to_f16(x: FloatArray) -> FloatArray:
    """The nearest finite float16 numbers, as float32."""
    nearest: FloatArray = np.clip(x, -_MAX_F16, _MAX_F16).astype(np.float16).astype(np.float32)
    return nearest


def _invert(scale: FloatArray) -> FloatArray:
    one_over: FloatArray = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    return one_over
