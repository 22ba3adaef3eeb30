"""What each kind of attention reads, computes and stores. Start at `count_attention` and `count_layer_kv_bytes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pelton.insight.kv_layout import (
    BLOCK_TOKENS,
    MIXED,
    KvFormat,
    count_compressed_mixed_bytes,
    count_fp8_key_bytes,
    count_mla_mixed_bytes,
    count_mxfp4_key_bytes,
)
from pelton.insight.model_shape import Attention, CompressedAttention, GroupedAttention, LatentAttention
from pelton.insight.weight_formats import NumberType

# Name, number type, bytes, operations.
AttendCost = tuple[str, NumberType, float, float]


@dataclass(frozen=True, slots=True)
class Work:
    """One request's share of a step: `num_tokens` tokens after `depth` earlier ones."""

    depth: int
    num_tokens: int

    @property
    def context(self) -> int:
        """Tokens stored after the step."""
        return self.depth + self.num_tokens


def count_attention(attention: Attention, kv: KvFormat, sequences: Sequence[Work]) -> Iterator[AttendCost]:
    """Costs of one layer's attention in one step."""
    if isinstance(attention, GroupedAttention):
        yield _count_grouped(attention, kv, sequences)
    elif isinstance(attention, LatentAttention):
        yield from _count_latent(attention, kv, sequences)
    else:
        yield from _count_compressed(attention, kv, sequences)


def count_layer_kv_bytes(attention: Attention, kv: KvFormat, context: int | None) -> float:
    """Bytes that one layer stores of a request at `context` tokens; per token, and no window full, for None."""
    tokens = 1 if context is None else context
    if isinstance(attention, GroupedAttention):
        seen = tokens if attention.window is None else min(tokens, attention.window)
        return seen * kv.count_block_bytes(attention.num_kv_heads, attention.head_dim) / BLOCK_TOKENS
    if isinstance(attention, LatentAttention):
        return tokens * (_count_latent_bytes(attention, kv) + _count_index_bytes(attention, kv))
    if context is None:
        return _count_growing_bytes(attention, kv)
    window = min(tokens, attention.window) * _count_entry_bytes(attention, kv)
    if not attention.ratio:
        return window
    return window + tokens // attention.ratio * _count_growing_bytes(attention, kv) * attention.ratio


def count_growing_bytes(attention: Attention, kv: KvFormat) -> float:
    """Bytes a token adds for ever: nothing in a layer with a window."""
    if isinstance(attention, GroupedAttention) and attention.window is not None:
        return 0.0
    return count_layer_kv_bytes(attention, kv, None)


def sum_visible_keys(first: int, num_tokens: int, most: int | None) -> float:
    """Keys that `num_tokens` queries see together: the first sees `first`, each later one another, none over `most`."""
    num_growing = num_tokens if most is None else min(max(most - first + 1, 0), num_tokens)
    growing = num_growing * (first + (num_growing - 1) / 2)
    return growing + (num_tokens - num_growing) * (most or 0)


def sum_visible_entries(work: Work, ratio: int, most: int | None) -> float:
    """The same for entries that pool `ratio` tokens: query t sees floor((t + 1) / ratio) of them."""
    # Counts with more than `most` entries begin at most * ratio tokens.
    end, capped = work.context, 0
    if most is not None and end > most * ratio:
        capped = min(end - most * ratio, work.num_tokens)
        end -= capped
    total = _sum_floors(end, ratio) - _sum_floors(end - (work.num_tokens - capped), ratio)
    return total + capped * (most or 0)


def _sum_floors(stop: int, ratio: int) -> int:
    """Sum of floor(n / ratio) for n from 1 to `stop`."""
    whole = stop // ratio
    return ratio * whole * (whole - 1) // 2 + whole * (stop - ratio * whole + 1) if stop > 0 else 0


def _count_grouped(attention: GroupedAttention, kv: KvFormat, sequences: Sequence[Work]) -> AttendCost:
    token_bytes = kv.count_block_bytes(attention.num_kv_heads, attention.head_dim) / BLOCK_TOKENS
    num_bytes = num_keys = 0.0
    for work in sequences:
        window = work.context if attention.window is None else attention.window
        num_bytes += min(work.context, window + work.num_tokens - 1) * token_bytes
        num_keys += sum_visible_keys(work.depth + 1, work.num_tokens, attention.window)
    return "attend", "f32", num_bytes, 4.0 * num_keys * attention.num_heads * attention.head_dim


def _count_latent(attention: LatentAttention, kv: KvFormat, sequences: Sequence[Work]) -> Iterator[AttendCost]:
    most = attention.indexer.top_k if attention.indexer else None
    num_keys = sum(sum_visible_keys(work.depth + 1, work.num_tokens, most) for work in sequences)
    # Several queries choose different keys; at worst all stored ones are read once.
    num_read = sum(min(work.context, (most or work.context) * work.num_tokens) for work in sequences)
    dims = 2 * attention.kv_lora_rank + attention.rope_dim
    yield "attend", "f32", num_read * _count_latent_bytes(attention, kv), 2.0 * num_keys * attention.num_heads * dims
    if attention.indexer is not None:
        num_scored = sum(sum_visible_keys(work.depth + 1, work.num_tokens, None) for work in sequences)
        num_ops = 2.0 * num_scored * attention.indexer.num_heads * attention.indexer.head_dim
        num_bytes = sum(work.context for work in sequences) * _count_index_bytes(attention, kv)
        yield "index", _get_index_type(kv, "fp8"), num_bytes, num_ops


def _count_compressed(attention: CompressedAttention, kv: KvFormat, sequences: Sequence[Work]) -> Iterator[AttendCost]:
    most = attention.indexer.top_k if attention.indexer else None
    num_keys = num_read = num_scored = num_entries = 0.0
    for work in sequences:
        num_keys += sum_visible_keys(work.depth + 1, work.num_tokens, attention.window)
        num_read += min(work.context, attention.window + work.num_tokens - 1)
        if attention.ratio:
            num_stored = work.context // attention.ratio
            num_keys += sum_visible_entries(work, attention.ratio, most)
            num_read += num_stored if most is None else min(num_stored, most * work.num_tokens)
            num_scored += sum_visible_entries(work, attention.ratio, None)
            num_entries += num_stored
    entry_bytes = _count_entry_bytes(attention, kv)
    yield "attend", "f32", num_read * entry_bytes, 4.0 * num_keys * attention.num_heads * attention.head_dim
    if attention.indexer is not None:
        num_ops = 2.0 * num_scored * attention.indexer.num_heads * attention.indexer.head_dim
        yield "index", _get_index_type(kv, "fp4"), num_entries * _count_index_bytes(attention, kv), num_ops


def _get_index_type(kv: KvFormat, published: NumberType) -> NumberType:
    return published if kv.name == MIXED else "f32"


def _count_latent_bytes(attention: LatentAttention, kv: KvFormat) -> float:
    if kv.name == MIXED:
        return count_mla_mixed_bytes(attention.kv_lora_rank, attention.rope_dim)
    return kv.count_vector_bytes(attention.kv_lora_rank + attention.rope_dim)


def _count_entry_bytes(attention: CompressedAttention, kv: KvFormat) -> float:
    if kv.name == MIXED:
        return count_compressed_mixed_bytes(attention.head_dim, attention.rope_dim)
    return kv.count_vector_bytes(attention.head_dim)


def _count_index_bytes(attention: LatentAttention | CompressedAttention, kv: KvFormat) -> float:
    if attention.indexer is None:
        return 0.0
    dim = attention.indexer.head_dim
    if kv.name != MIXED:
        return kv.count_vector_bytes(dim)
    return count_fp8_key_bytes(dim) if isinstance(attention, LatentAttention) else count_mxfp4_key_bytes(dim)


def _count_growing_bytes(attention: CompressedAttention, kv: KvFormat) -> float:
    if not attention.ratio:
        return 0.0
    return (_count_entry_bytes(attention, kv) + _count_index_bytes(attention, kv)) / attention.ratio
