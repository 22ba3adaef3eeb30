"""Bytes of keys and values: per token and kind of layer, and as the blocks of the native KV cache hold them.

The layout of grouped attention is that of `native/ops/attention/kv_layout.h` and `native/program/kv_cache.cc`, to the
byte (a test compares them). Latents (DeepSeek) follow the formats they are published with. Start at `KvFormat`.
"""

from __future__ import annotations

from dataclasses import dataclass

from pelton.core.config import KV_CACHE_DTYPES
from pelton.core.errors import InvalidParameterError

BLOCK_TOKENS = 16
# How DeepSeek serves its latents: fp8 with scales, rotated dimensions in bf16, index keys in fp8 or MXFP4.
MIXED = "mixed"

_BITS = {"f16": 16, "bf16": 16, "f32": 32, "int8": 8, "int4": 4}
# Keys of int4 have 5 bits around a center of 4.
_KEY_BITS = {"int4": 5}
_UNIT_DIMS = 32
_LINE = 64
_HALF_PAGE = 2048


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


@dataclass(frozen=True, slots=True)
class KvFormat:
    """A type of stored keys and values: one of `KV_CACHE_DTYPES`, or "mixed" for latents."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in (*KV_CACHE_DTYPES, MIXED):
            allowed = ", ".join((*KV_CACHE_DTYPES, MIXED))
            raise InvalidParameterError("kv_cache_dtype", self.name, f"one of {allowed}")

    def count_block_bytes(self, num_kv_heads: int, head_dim: int) -> int:
        """Bytes of one layer in a block of 16 tokens that hold something.

        Raises `InvalidParameterError` for "mixed", which only latents have.
        """
        if self.name == MIXED:
            allowed = ", ".join(KV_CACHE_DTYPES)
            raise InvalidParameterError("kv_cache_dtype", self.name, f"for a model with keys and values: {allowed}")
        key_bits, value_bits = _KEY_BITS.get(self.name, _BITS[self.name]), _BITS[self.name]
        is_coded = value_bits <= 8
        key_dim = _round_up(head_dim, _UNIT_DIMS if is_coded else 32 // value_bits)
        value_dim = _round_up(head_dim, _UNIT_DIMS if is_coded else 16)
        scale_bytes = BLOCK_TOKENS * 2 if is_coded else 0
        key_bytes = key_dim * BLOCK_TOKENS * key_bits // 8 + scale_bytes
        value_bytes = value_dim * BLOCK_TOKENS * value_bits // 8 + scale_bytes
        center_bytes = key_dim // 2 + 2 if self.name == "int4" else 0
        return _round_up(num_kv_heads * key_bytes, self.line_bytes) + num_kv_heads * (value_bytes + center_bytes)

    @property
    def line_bytes(self) -> int:
        """What values, and the layers of a block, start at a multiple of."""
        return 2 if self.name == "int4" else _LINE

    def count_vector_bytes(self, num_elements: int) -> float:
        """Bytes of one latent of `num_elements`, with a float16 scale (int4: and minimum) where the type has one."""
        bits = _BITS[self.name]
        return num_elements * bits / 8 + 2 * ((bits <= 8) + (bits == 4))


def count_cache_block_bytes(kv: KvFormat, num_kv_heads: int, head_dim: int, num_layers: int) -> int:
    """Bytes from one block of the native cache to the next: its layers, and a gap to an odd number of half pages."""
    layer_bytes = _round_up(kv.count_block_bytes(num_kv_heads, head_dim), kv.line_bytes)
    num_halves = -(-num_layers * layer_bytes // _HALF_PAGE)
    return (num_halves + (num_halves % 2 == 0)) * _HALF_PAGE


# DeepSeek-V3.2: 512 in fp8, 4 float32 scales, 64 rotated in bf16 (FlashMLA's fp8 format); index key of 128 in fp8
# with a float32 scale. DeepSeek-V4 (technical report, arXiv:2606.19348): 448 in fp8, 7 scales and a byte of padding,
# 64 rotated in bf16; index key of 128 in MXFP4.
def count_mla_mixed_bytes(latent_dim: int, rotated_dim: int) -> int:
    """fp8 latent with a float32 scale per 128, rotated part in bf16."""
    return latent_dim + latent_dim // 128 * 4 + rotated_dim * 2


def count_fp8_key_bytes(dim: int) -> int:
    """An index key in fp8 with one float32 scale."""
    return dim + 4


def count_compressed_mixed_bytes(dim: int, rotated_dim: int) -> int:
    """fp8 with a one-byte scale per 64, rotated part in bf16, padded to 8 bytes."""
    plain = dim - rotated_dim
    return _round_up(plain + plain // 64 + rotated_dim * 2, 8)


def count_mxfp4_key_bytes(dim: int) -> int:
    """An index key in MXFP4: half a byte each, a scale byte per 32."""
    return dim // 2 + dim // 32
