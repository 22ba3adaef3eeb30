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
        bits = _BITS[self.name]
        key_unit = 16 if bits == 4 else 32 // bits
        key_dim, value_dim = _round_up(head_dim, key_unit), _round_up(head_dim, 32 if bits == 4 else 16)
        # A float16 scale per token, for int4 a minimum as well.
        scale_bytes = BLOCK_TOKENS * 2 * ((bits <= 8) + (bits == 4))
        key_bytes = key_dim * BLOCK_TOKENS * bits // 8 + scale_bytes
        value_bytes = value_dim * BLOCK_TOKENS * bits // 8 + scale_bytes
        center_bytes = _round_up(key_dim + 4, 16) if bits == 4 else 0
        return _round_up(num_kv_heads * key_bytes, _LINE) + num_kv_heads * (value_bytes + center_bytes)

    def count_vector_bytes(self, num_elements: int) -> float:
        """Bytes of one latent of `num_elements`, with a float16 scale (int4: and minimum) where the type has one."""
        bits = _BITS[self.name]
        return num_elements * bits / 8 + 2 * ((bits <= 8) + (bits == 4))


def count_cache_block_bytes(layer_bytes: int, num_layers: int) -> int:
    """Bytes from one block of the native cache to the next: its layers, and a gap to an odd number of half pages."""
    num_halves = -(-num_layers * _round_up(layer_bytes, _LINE) // _HALF_PAGE)
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
