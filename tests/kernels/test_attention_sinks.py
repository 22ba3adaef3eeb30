"""Sinks and windows of attend on every ISA: logits without values, spans outside the window."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attention_inputs import attend_forward, make_cache, run_chunks
from kernel_inputs import ISAS, assert_same_bits, pack_f32, run_by_reference, run_native

from pelton._native import Program, ThreadPool
from pelton.compute.batch import make_batch
from pelton.compute.ops import AttendSpec


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", [None, 20])
def test_sinks_equal_the_reference(isa, window, rng, pool):
    heads = (4, 2, 16)
    for num_tokens in (1, 40, 600):
        forward = attend_forward(rng, pool, heads, num_tokens, sinks=(0.5, -30.0, 40.0, 2.0), window=window)
        table = list(range(-(-num_tokens // 16)))
        batch = make_batch([(list(range(num_tokens)), 0, table)], list(range(num_tokens)))
        actual = run_native(forward, batch, isa, pool, make_cache(heads))
        np.testing.assert_allclose(actual, run_by_reference(forward, batch), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_a_sink_weighs_as_much_as_its_exponential(isa, pool):
    # Equal scores of 0 and one-hot values: each of n tokens weighs 1 / (n + e^sink).
    zeros, one_hot = pack_f32(np.zeros((3, 16)), pool), pack_f32(np.eye(3, 16), pool)
    spec = AttendSpec(layer=0, num_heads=1, num_kv_heads=1, head_dim=16, scale=1.0, sinks=(math.log(2.0),))
    forward = lambda ops: ops.select_rows(ops.attend(ops.embed(zeros), ops.embed(zeros), ops.embed(one_hot), spec))  # noqa: E731
    rows = run_chunks(forward, isa, pool, (1, 1, 16), 3, 3, [0])
    for i, row in enumerate(rows):
        np.testing.assert_allclose(row[: i + 1], 1 / (i + 1 + 2), rtol=1e-6)
        assert not row[i + 1 :].any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", [1, 100, 257, 700])
def test_spans_outside_the_window_change_no_bit_however_a_sequence_is_cut(isa, window, rng, pool):
    heads, num_tokens = (4, 2, 16), 1100
    forward = attend_forward(rng, pool, heads, num_tokens, window=window, sinks=(0.0, 1.0, 2.0, 3.0))
    table = list(range(-(-num_tokens // 16)))
    batch = make_batch([(list(range(num_tokens)), 0, table)], list(range(num_tokens)))
    whole = run_native(forward, batch, isa, pool, make_cache(heads))
    np.testing.assert_allclose(whole, run_by_reference(forward, batch), rtol=2e-4, atol=2e-5)
    for chunk, threads in ((1, 1), (33, 3), (550, 2)):
        cut = run_chunks(forward, isa, ThreadPool(threads), heads, num_tokens, chunk, table)
        assert_same_bits(cut, whole)


def test_keys_outside_the_window_are_not_touched(rng, pool):
    # What is not computed cannot matter: keys that overflow float16 lie before the window.
    heads, num_tokens = (1, 1, 16), 600
    q, v = (pack_f32(rng.standard_normal((num_tokens, 16)), pool) for _ in range(2))
    keys = rng.standard_normal((num_tokens, 16))
    keys[:500] = 1e9
    k = pack_f32(keys, pool)
    spec = AttendSpec(layer=0, num_heads=1, num_kv_heads=1, head_dim=16, scale=1.0, window=64)
    forward = lambda ops: ops.select_rows(ops.attend(ops.embed(q), ops.embed(k), ops.embed(v), spec))  # noqa: E731
    rows = run_chunks(forward, ISAS[-1], pool, heads, num_tokens, 1, list(range(38)))
    assert np.isfinite(rows[563:]).all()


def test_sinks_need_one_logit_per_head(pool):
    program = Program(pool, ISAS[-1])
    q, out = (program.add_buffer(32, "tokens", False) for _ in range(2))
    with pytest.raises(ValueError, match="one sink per head"):
        program.attend(q, out, 0, 2, 16, 1.0, 0.0, 0, [1.0])
