"""Bytes that a step needs besides weights, keys and values: activations, tables, logits, attention's scratch.

Follows how the recorder places buffers (`compute/recorder.py`) and the executor lays them out. Start at
`count_workspace_bytes`.
"""

from __future__ import annotations

from pelton.insight.model_shape import CompressedAttention, GroupedAttention, LatentAttention, Layer, ModelShape

_F32 = 4
# An int8 code per input; per 32 inputs a scale and sums for the weights' minima and zero points.
_QUANT_BYTES = 1 + 3 * 4 / 32 + 2 * 4 / 16
_CAPACITY_STEP = 64
_SPAN_TOKENS = 256
_NUM_ITEM_ROWS = 48


def count_workspace_bytes(
    shape: ModelShape, num_tokens: int, num_requests: int, num_threads: int, *, is_quantized: bool
) -> int:
    """Workspace of steps with up to `num_tokens` tokens of `num_requests` requests, one row of logits each.

    `is_quantized` says whether inputs are quantised to int8 beside their float32 values.
    """
    rows = -(-num_tokens // _CAPACITY_STEP) * _CAPACITY_STEP
    sampled = -(-num_requests // 8) * 8
    widest = max(shape.layers, key=lambda layer: _count_layer_width(layer, shape))
    width = 2 * shape.hidden_size * shape.num_streams + _count_layer_width(widest, shape)
    per_row = width * _F32 + (_count_quantized_width(widest, shape) * _QUANT_BYTES if is_quantized else 0)
    head_dim = _get_head_dim(widest)
    tables = rows * head_dim * _F32 + rows * 2 * _F32
    logits = sampled * shape.vocab_size * _F32 * 2  # the program's own, and the copy that sampling reads
    scratch = num_threads * _NUM_ITEM_ROWS * (_SPAN_TOKENS + 4 * head_dim) * _F32
    return int(rows * per_row + sampled * per_row + tables + logits + scratch)


def _count_layer_width(layer: Layer, shape: ModelShape) -> int:
    """Columns of float32 values that live at the same time besides the residual stream."""
    attention = layer.attention
    if isinstance(attention, GroupedAttention):
        q, kv = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
        # Attention's output takes the place of the normed input where the two are equally wide.
        inner = q + 2 * kv + (0 if q == shape.hidden_size else q)
    elif isinstance(attention, LatentAttention):
        heads = attention.num_heads * (attention.kv_lora_rank * 2 + attention.rope_dim)
        inner = heads + (attention.q_lora_rank or 0) + attention.kv_lora_rank + attention.rope_dim
    else:
        assert isinstance(attention, CompressedAttention)
        inner = 2 * attention.num_heads * attention.head_dim + attention.q_lora_rank + attention.head_dim
    mlp = layer.mlp
    return inner + 2 * (mlp.size * max(mlp.num_experts_per_token, 1) + mlp.shared_size)


def _count_quantized_width(layer: Layer, shape: ModelShape) -> int:
    mlp = layer.mlp
    return shape.hidden_size + mlp.size * max(mlp.num_experts_per_token, 1) + mlp.shared_size


def _get_head_dim(layer: Layer) -> int:
    attention = layer.attention
    return attention.kv_lora_rank if isinstance(attention, LatentAttention) else attention.head_dim
