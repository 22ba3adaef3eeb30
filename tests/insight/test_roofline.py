"""Costs of steps and their limits, against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pelton._native import KvCache, ThreadPool, available_isas, pack_weight
from pelton.compute.batch import make_batch
from pelton.compute.ops import AttendSpec
from pelton.compute.recorder import record_program
from pelton.core.step_cost import StepCost, share_time
from pelton.insight.machine_limits import Measured, ThreadLimits
from pelton.insight.roofline import compute_roofline

LIMITS = ThreadLimits(
    num_threads=2,
    read_bytes_per_s=Measured(10e9, 9e9),
    read_streams=4,
    f32_ops_per_s=Measured(100e9, 90e9),
    int8_ops_per_s=Measured(400e9, 300e9),
    bf16_ops_per_s=None,
    stage_handoff_s=Measured(1e-6, 2e-6),
)

F32, Q4_0 = 0, 2
HIDDEN, VOCAB = 64, 32


def run_tiny_model(
    sequences: list[tuple[int, int]], window: int | None = None
) -> list[tuple[str, float, float, float]]:
    """Node times of one step of attention and two linears; `sequences` are (tokens before, tokens of this step)."""
    pool = ThreadPool(1)
    floats = pack_weight(F32, VOCAB, HIDDEN, np.zeros(VOCAB * HIDDEN * 4, np.uint8), pool)
    # 64 x 64 in Q4_0: 128 blocks of 32 weights.
    codes = pack_weight(Q4_0, HIDDEN, HIDDEN, np.zeros(128 * 18, np.uint8), pool)
    spec = AttendSpec(layer=0, num_heads=4, num_kv_heads=2, head_dim=16, scale=1.0, window=window)
    keys = pack_weight(F32, VOCAB, 32, np.zeros(VOCAB * 32 * 4, np.uint8), pool)

    def forward(ops):
        x = ops.attend(ops.embed(floats), ops.embed(keys), ops.embed(keys), spec)
        return ops.linear(ops.select_rows(ops.linear(x, codes)), floats)

    program = record_program(forward, pool, available_isas()[-1])
    cache = KvCache(1, 2, 16, 64, "f16")
    tables = iter(range(64))
    batch = make_batch(
        [([0] * n, before, [next(tables) for _ in range(-(-(before + n) // 16))]) for before, n in sequences]
    )
    program.run(cache, batch.token_ids, batch.cu_seqlens, batch.context_lens, batch.block_tables, batch.sample_rows)
    return program.timings()


def test_nodes_count_weights_once_and_keys_and_values_per_context() -> None:
    nodes = {kind: (num_bytes, ops) for kind, _, num_bytes, ops in run_tiny_model([(10, 3), (40, 1)])}
    # 64 x 64 codes of 4 bits, and an f16 scale per 32: 2048 + 256 bytes; 4 tokens x 2 x 64 x 64 operations.
    assert nodes["linear"] == (2304, 4 * 8192)
    # 32 x 64 float32; the 2 sampled rows.
    assert nodes["linear_float"] == (32 * 64 * 4, 2 * 2 * 32 * 64)
    # K and V of 2 heads x 16 x f16 for contexts of 13 and 41. Tokens see 11, 12, 13 and 41 keys: a product with the
    # key and one with the value, 4 heads x 16 multiply-adds each.
    assert nodes["attend"] == ((13 + 41) * 2 * 2 * 16 * 2, (11 + 12 + 13 + 41) * 2 * 2 * 4 * 16)


@pytest.mark.parametrize(
    ("window", "keys_read", "keys_seen"),
    [
        (12, 13 + 12, 11 + 12 + 12 + 12),
        (5, 7 + 5, 5 + 5 + 5 + 5),
        (100, 13 + 41, 11 + 12 + 13 + 41),
    ],
)
def test_a_window_bounds_what_attention_needs(window: int, keys_read: int, keys_seen: int) -> None:
    nodes = {kind: (num_bytes, ops) for kind, _, num_bytes, ops in run_tiny_model([(10, 3), (40, 1)], window)}
    assert nodes["attend"] == (keys_read * 2 * 2 * 16 * 2, keys_seen * 2 * 2 * 4 * 16)


def test_step_cost_tells_int8_from_float32() -> None:
    cost = StepCost.from_node_times(run_tiny_model([(0, 1)]))
    assert cost.num_int8_ops == 8192
    assert cost.num_f32_ops == 2 * 32 * 64 + 1 * 2 * 2 * 4 * 16
    assert cost.num_bytes == 2304 + 32 * 64 * 4 + 2 * 2 * 16 * 2
    assert cost.num_ops == cost.num_int8_ops + cost.num_f32_ops
    assert cost * 2.0 == cost + cost


def test_decode_is_bound_by_memory() -> None:
    # 1 MB at 10 GB/s: 100 us. 2 Mop of int8 at 400 Gop/s: 5 us, and 1 Mop of float32: 10 us more.
    roofline = compute_roofline(StepCost(1e6, 2e6, 1e6), LIMITS)
    assert roofline.memory_s == pytest.approx(100e-6)
    assert roofline.arithmetic_s == pytest.approx(15e-6)
    assert roofline.bound == "memory"
    assert roofline.least_s == pytest.approx(100e-6)
    assert roofline.compute_pct(200e-6) == pytest.approx(50.0)


def test_prefill_is_bound_by_arithmetic() -> None:
    roofline = compute_roofline(StepCost(1e6, 1000e6, 100e6), LIMITS)
    assert roofline.arithmetic_s == pytest.approx(3.5e-3)
    assert roofline.bound == "arithmetic"
    assert roofline.compute_pct(7e-3) == pytest.approx(50.0)


def test_time_is_shared_between_linear_attend_and_the_rest() -> None:
    nodes = [("linear", 1.0, 0.0, 0.0), ("linear_float", 2.0, 0.0, 0.0), ("attend", 4.0, 0.0, 0.0)]
    nodes += [("rms_norm", 8.0, 0.0, 0.0), ("quantize", 16.0, 0.0, 0.0)]
    assert share_time(nodes) == {"linear": 3.0, "attend": 4.0, "other": 24.0}
