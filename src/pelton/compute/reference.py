"""The oracle: every op at once in NumPy float32, slow and obvious. The place to read what an op means.

Weights are dequantised, activations are not quantised. K and V are rounded to the cache's dtype before attention
uses them, and queries to what meets them, as everywhere in Pelton. Entry point: `run_reference`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pelton.compute.batch import Batch
from pelton.compute.kv_rounding import round_keys, round_queries, round_values
from pelton.compute.ops import AttendSpec, FloatArray, Weight
from pelton.compute.rope import compute_rope_table
from pelton.core.model_config import RopeConfig


@dataclass(slots=True)
class ReferenceCache:
    """Dense K and V per (layer, sequence row): [context, kv_heads, head_dim], not yet rounded to the cache's dtype."""

    kv_dtype: str = "f16"
    keys: dict[tuple[int, int], FloatArray] = field(default_factory=dict)
    values: dict[tuple[int, int], FloatArray] = field(default_factory=dict)


class ReferenceOps:
    """`Ops` over NumPy arrays for one batch. Sequence s of the batch continues sequence s of the cache."""

    def __init__(self, batch: Batch, cache: ReferenceCache) -> None:
        self._batch = batch
        self._cache = cache

    def embed(self, weight: Weight) -> FloatArray:
        return weight.dequantize()[self._batch.token_ids]

    def rms_norm(self, x: FloatArray, weight: FloatArray, eps: float) -> FloatArray:
        mean = np.mean(np.square(x, dtype=np.float64), axis=1, keepdims=True)
        out: FloatArray = (x / np.sqrt(mean + eps) * weight).astype(np.float32)
        return out

    def linear(self, x: FloatArray, weight: Weight) -> FloatArray:
        out: FloatArray = x @ weight.dequantize().T
        return out

    def add(self, a: FloatArray, b: FloatArray) -> FloatArray:
        return a + b

    def silu_mul(self, gate: FloatArray, up: FloatArray) -> FloatArray:
        with np.errstate(over="ignore"):
            return (gate / (1.0 + np.exp(-gate)) * up).astype(np.float32)

    def rope(self, x: FloatArray, rope: RopeConfig, head_dim: int) -> FloatArray:
        inverse, magnitude = compute_rope_table(rope)
        angles = self._batch.positions[:, None, None].astype(np.float64) * inverse
        cos, sin = np.cos(angles) * magnitude, np.sin(angles) * magnitude
        heads = x.reshape(len(x), -1, head_dim).astype(np.float64)
        first, second = (
            (slice(0, rope.num_dims, 2), slice(1, rope.num_dims, 2))
            if rope.pairing == "adjacent"
            else (slice(0, rope.num_dims // 2), slice(rope.num_dims // 2, rope.num_dims))
        )
        out = heads.copy()
        out[..., first] = heads[..., first] * cos - heads[..., second] * sin
        out[..., second] = heads[..., first] * sin + heads[..., second] * cos
        rotated: FloatArray = out.reshape(x.shape).astype(np.float32)
        return rotated

    def attend(self, q: FloatArray, k: FloatArray, v: FloatArray, spec: AttendSpec) -> FloatArray:
        out = np.empty_like(q)
        for s in range(len(self._batch.context_lens)):
            rows = slice(int(self._batch.cu_seqlens[s]), int(self._batch.cu_seqlens[s + 1]))
            keys = round_keys(self._store(self._cache.keys, k[rows], spec, s), self._cache.kv_dtype)
            values = round_values(self._store(self._cache.values, v[rows], spec, s), self._cache.kv_dtype)
            flat = (len(keys), k.shape[1])
            queries = round_queries(
                (q[rows] * np.float32(spec.scale)).reshape(-1, spec.num_heads, spec.head_dim), self._cache.kv_dtype
            ).reshape(-1, q.shape[1])
            out[rows] = _attend_sequence(
                queries, keys.reshape(flat), values.reshape(flat), self._batch.positions[rows], spec
            )
        return out

    def _store(
        self, store: dict[tuple[int, int], FloatArray], new: FloatArray, spec: AttendSpec, seq: int
    ) -> FloatArray:
        start = int(self._batch.context_lens[seq]) - len(new)
        heads = new.reshape(len(new), spec.num_kv_heads, spec.head_dim)
        known = store[spec.layer, seq][:start] if start else heads[:0]
        store[spec.layer, seq] = np.concatenate([known, heads])
        return store[spec.layer, seq]

    def select_rows(self, x: FloatArray) -> FloatArray:
        return x[self._batch.sample_rows]


def _attend_sequence(
    q: FloatArray, keys: FloatArray, values: FloatArray, positions: np.ndarray, spec: AttendSpec
) -> FloatArray:
    """Attention of one sequence: scaled q [n, heads * d] over keys and values [context, kv_heads * d]."""
    group = spec.num_heads // spec.num_kv_heads
    distance = positions[:, None] - np.arange(len(keys))[None, :]
    hidden = distance < 0
    if spec.window is not None:
        hidden |= distance >= spec.window
    out = np.empty_like(q)
    for head in range(spec.num_heads):
        mine = slice(head * spec.head_dim, (head + 1) * spec.head_dim)
        shared = slice(head // group * spec.head_dim, (head // group + 1) * spec.head_dim)
        scores = q[:, mine].astype(np.float64) @ keys[:, shared].T
        if spec.softcap is not None:
            scores = spec.softcap * np.tanh(scores / spec.softcap)
        scores[hidden] = -np.inf
        sink = -np.inf if spec.sinks is None else spec.sinks[head]
        highest = np.maximum(scores.max(axis=1, keepdims=True), sink)
        weights = np.exp(scores - highest)
        total = weights.sum(axis=1, keepdims=True) + np.exp(sink - highest)
        out[:, mine] = weights @ values[:, shared] / total
    return out


def run_reference(forward: Callable[[ReferenceOps], FloatArray], batch: Batch, cache: ReferenceCache) -> FloatArray:
    """Run `forward` on `batch`; returns its result, for a model the logits [R, vocab]. Extends `cache`."""
    return forward(ReferenceOps(batch, cache))
