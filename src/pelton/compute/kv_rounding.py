"""What the KV cache keeps of keys and values, dtype by dtype, in NumPy float32.

The rule and its layout are written in `native/ops/attention/kv_layout.h`; this is the same rule for the reference.
Entry point: `round_to_kv_dtype`.
"""

from __future__ import annotations

import numpy as np

from pelton.compute.ops import FloatArray

_MAX_F16 = np.float32(65504)


def round_to_kv_dtype(heads: FloatArray, dtype: str) -> FloatArray:
    """Return float32 `heads` [..., head_dim] as read back from a cache of `dtype`; int8 and int4 scale each head."""
    if dtype == "f32":
        return heads
    if dtype == "f16":
        return heads.astype(np.float16).astype(np.float32)
    if dtype == "bf16":
        return _round_bf16(heads)
    return _round_int8(heads) if dtype == "int8" else _round_int4(heads)


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
