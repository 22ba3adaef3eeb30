"""Inputs for attention tests: a forward pass of one attend, and how to run it in chunks."""

from __future__ import annotations

import numpy as np
from kernel_inputs import pack_f32, run_program

from pelton._native import KvCache
from pelton.compute.batch import make_batch
from pelton.compute.ops import AttendSpec
from pelton.compute.recorder import record_program

# (query heads, KV heads, head_dim)
HEADS = [(1, 1, 8), (4, 2, 16), (9, 3, 64), (8, 1, 24), (3, 3, 80)]


def attend_forward(rng, pool, heads, num_tokens, **spec):
    """A forward pass that is one attend over random q, k and v, embedded by token id."""
    num_heads, num_kv_heads, head_dim = heads
    q = pack_f32(rng.standard_normal((num_tokens, num_heads * head_dim)) * 2, pool)
    k, v = (pack_f32(rng.standard_normal((num_tokens, num_kv_heads * head_dim)), pool) for _ in range(2))
    attend = AttendSpec(
        layer=0, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, scale=head_dim**-0.5, **spec
    )
    return lambda ops: ops.select_rows(ops.attend(ops.embed(q), ops.embed(k), ops.embed(v), attend))


def make_cache(heads, num_blocks=128, dtype="f16"):
    """An empty cache of one layer."""
    return KvCache(1, heads[1], heads[2], num_blocks, dtype)


def run_chunks(forward, isa, pool, heads, num_tokens, chunk, table, dtype="f16"):
    """Rows of `forward` for tokens 0, 1, ... run `chunk` at a time, over a fresh cache."""
    program, cache = record_program(forward, pool, isa), make_cache(heads, dtype=dtype)
    parts = []
    for start in range(0, num_tokens, chunk):
        ids = list(range(start, min(start + chunk, num_tokens)))
        parts.append(run_program(program, make_batch([(ids, start, table)], list(range(len(ids)))), cache))
    return np.concatenate(parts)
