"""The Llama family: SmolLM2, Llama 2 and 3.x, TinyLlama, Mistral 7B as GGUF `llama`.

Pre-norm transformer with RMSNorm, rotary positions, grouped-query attention and SwiGLU (Touvron et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pelton.compute.ops import AttendSpec, FloatArray, Ops, Value, Weight
from pelton.core.errors import ModelFileError, UnsupportedModelError
from pelton.core.model_config import ModelConfig, RopeConfig
from pelton.models.metadata import Metadata


@dataclass(frozen=True, slots=True)
class LlamaLayer:
    """Weights of one layer; matrices are [outputs, inputs]."""

    attn_norm: FloatArray
    q: Weight
    k: Weight
    v: Weight
    attn_output: Weight
    ffn_norm: FloatArray
    gate: Weight
    up: Weight
    down: Weight


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All weights; `output` is `embedding` itself where the two are tied."""

    embedding: Weight
    layers: tuple[LlamaLayer, ...]
    output_norm: FloatArray
    output: Weight


class TensorSource(Protocol):
    """Where a family takes its tensors from, by the file's names. Each shape is checked before it is read."""

    def has(self, name: str) -> bool: ...
    def get_matrix(self, name: str, rows: int, cols: int) -> Weight: ...
    def get_vector(self, name: str, size: int) -> FloatArray: ...


def read_config(values: Mapping[str, object], source: TensorSource, vocab_size: int) -> ModelConfig:
    """Map GGUF metadata to a `ModelConfig`. Raises `ModelFileError` for a missing or impossible value."""
    meta = Metadata(values, "llama")
    if meta.has("expert_count"):
        raise UnsupportedModelError("llama with experts (llama.expert_count) is not supported; allowed: dense models")
    hidden_size = meta.get_int("embedding_length", maximum=2**20)
    num_heads = meta.get_int("attention.head_count", maximum=4096)
    head_dim = meta.get_int("attention.key_length", hidden_size // num_heads, maximum=4096)
    value_dim = meta.get_int("attention.value_length", head_dim, maximum=4096)
    if value_dim != head_dim:
        raise UnsupportedModelError(f"llama.attention.value_length is {value_dim}; allowed: key_length, {head_dim}")
    name = values.get("general.name")
    return ModelConfig(
        model_type="llama",
        name=name if isinstance(name, str) else "llama",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=meta.get_int("feed_forward_length", maximum=2**22),
        num_layers=meta.get_int("block_count", maximum=4096),
        num_heads=num_heads,
        num_kv_heads=meta.get_int("attention.head_count_kv", num_heads, maximum=4096),
        head_dim=head_dim,
        max_position_embeddings=meta.get_int("context_length"),
        norm_eps=meta.get_float("attention.layer_norm_rms_epsilon"),
        rope=_read_rope(meta, head_dim, source),
        tie_word_embeddings=not source.has("output.weight"),
        sliding_window=meta.get_int("attention.sliding_window") if meta.has("attention.sliding_window") else None,
    )


def _read_rope(meta: Metadata, head_dim: int, source: TensorSource) -> RopeConfig:
    num_dims = meta.get_int("rope.dimension_count", head_dim, maximum=head_dim)
    if num_dims % 2:
        raise ModelFileError(f"metadata key llama.rope.dimension_count is {num_dims}; allowed: even numbers")
    theta = meta.get_float("rope.freq_base", 10000.0)
    kind = meta.get_str("rope.scaling.type", "none")
    factor = meta.get_float("rope.scaling.factor", meta.get_float("rope.scale_linear", 1.0))
    # The older key alone means linear scaling.
    if kind == "none" and not meta.has("rope.scaling.type") and factor != 1.0:
        kind = "linear"
    if source.has("rope_freqs.weight"):
        factors = tuple(float(x) for x in source.get_vector("rope_freqs.weight", num_dims // 2))
        return RopeConfig(num_dims=num_dims, theta=theta, scaling="factors", frequency_factors=factors)
    if kind == "none":
        return RopeConfig(num_dims=num_dims, theta=theta)
    if kind == "linear":
        return RopeConfig(num_dims=num_dims, theta=theta, scaling="linear", factor=factor)
    if kind != "yarn":
        raise UnsupportedModelError(
            f"llama.rope.scaling.type is {kind!r}; supported: none, linear, yarn, and rope_freqs.weight"
        )
    return RopeConfig(
        num_dims=num_dims,
        theta=theta,
        scaling="yarn",
        factor=factor,
        original_context=meta.get_int("rope.scaling.original_context_length", meta.get_int("context_length")),
        yarn_beta_fast=meta.get_float("rope.scaling.yarn_beta_fast", 32.0),
        yarn_beta_slow=meta.get_float("rope.scaling.yarn_beta_slow", 1.0),
        yarn_attention_factor=_read_yarn_magnitude(meta, factor),
    )


def _read_yarn_magnitude(meta: Metadata, factor: float) -> float | None:
    """The file's factor on cosine and sine, times YaRN's own; None where the file leaves YaRN's own."""
    for key in ("rope.scaling.yarn_ext_factor", "rope.scaling.yarn_log_multiplier"):
        if meta.has(key) and meta.get_float(key) != 1.0:
            raise UnsupportedModelError(f"llama.{key} is {meta.get_float(key)}; supported: 1, or no such key")
    keys = [key for key in ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor") if meta.has(key)]
    if not keys:
        return None
    return math.prod(meta.get_float(key) for key in keys) * (0.1 * math.log(max(factor, 1.0)) + 1.0)


def load_weights(config: ModelConfig, source: TensorSource) -> LlamaWeights:
    """Take every tensor of the family from `source`."""
    hidden, ffn = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def load_layer(index: int) -> LlamaLayer:
        prefix = f"blk.{index}."
        return LlamaLayer(
            attn_norm=source.get_vector(prefix + "attn_norm.weight", hidden),
            q=source.get_matrix(prefix + "attn_q.weight", q_size, hidden),
            k=source.get_matrix(prefix + "attn_k.weight", kv_size, hidden),
            v=source.get_matrix(prefix + "attn_v.weight", kv_size, hidden),
            attn_output=source.get_matrix(prefix + "attn_output.weight", hidden, q_size),
            ffn_norm=source.get_vector(prefix + "ffn_norm.weight", hidden),
            gate=source.get_matrix(prefix + "ffn_gate.weight", ffn, hidden),
            up=source.get_matrix(prefix + "ffn_up.weight", ffn, hidden),
            down=source.get_matrix(prefix + "ffn_down.weight", hidden, ffn),
        )

    embedding = source.get_matrix("token_embd.weight", config.vocab_size, hidden)
    return LlamaWeights(
        embedding=embedding,
        layers=tuple(load_layer(i) for i in range(config.num_layers)),
        output_norm=source.get_vector("output_norm.weight", hidden),
        output=embedding
        if config.tie_word_embeddings
        else source.get_matrix("output.weight", config.vocab_size, hidden),
    )


def forward(ops: Ops[Value], config: ModelConfig, weights: LlamaWeights) -> Value:
    """Logits of the step's sampled rows, [R, vocab]."""
    return ops.linear(forward_hidden(ops, config, weights), weights.output)


def forward_hidden(ops: Ops[Value], config: ModelConfig, weights: LlamaWeights) -> Value:
    """Hidden states of the step's sampled rows: after the last norm, before the output matrix, [R, hidden]."""
    x = ops.embed(weights.embedding)
    for index, layer in enumerate(weights.layers):
        h = ops.rms_norm(x, layer.attn_norm, config.norm_eps)
        q, k, v = ops.linear(h, layer.q), ops.linear(h, layer.k), ops.linear(h, layer.v)
        q = ops.rope(q, config.rope, config.head_dim)
        k = ops.rope(k, config.rope, config.head_dim)
        spec = AttendSpec(
            layer=index,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            scale=1.0 / math.sqrt(config.head_dim),
            window=config.sliding_window,
        )
        a = ops.attend(q, k, v, spec)
        if index == config.num_layers - 1:
            # Past the last attention, rows that are not sampled have no effect on anything.
            a, x = ops.select_rows(a), ops.select_rows(x)
        x = ops.add(x, ops.linear(a, layer.attn_output))
        h = ops.rms_norm(x, layer.ffn_norm, config.norm_eps)
        gate, up = ops.linear(h, layer.gate), ops.linear(h, layer.up)
        x = ops.add(x, ops.linear(ops.silu_mul(gate, up), layer.down))
    return ops.rms_norm(x, weights.output_norm, config.norm_eps)
