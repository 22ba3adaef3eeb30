"""Row-wise ops on every ISA: against the reference, and against the scalar code bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_inputs import ISAS, assert_same_bits, make_token_batch, pack_f32, run_by_reference, run_native

from pelton.core.model_config import RopeConfig

WIDTHS = (1, 8, 15, 16, 17, 100, 576)


def forwards(rng, pool, width):
    """One forward per op over 5 tokens of `width` columns."""
    x, y = (pack_f32(rng.standard_normal((5, width)) * 4, pool) for _ in range(2))
    weight = rng.standard_normal(width).astype(np.float32)
    return {
        "embed": lambda ops: ops.select_rows(ops.embed(x)),
        "rms_norm": lambda ops: ops.select_rows(ops.rms_norm(ops.embed(x), weight, 1e-5)),
        "silu_mul": lambda ops: ops.select_rows(ops.silu_mul(ops.embed(x), ops.embed(y))),
        "add": lambda ops: ops.select_rows(ops.add(ops.embed(x), ops.embed(y))),
    }


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", WIDTHS)
def test_rowwise_ops_equal_the_reference(isa, width, rng, pool):
    for forward in forwards(rng, pool, width).values():
        batch = make_token_batch(5)
        expected = run_by_reference(forward, batch)
        np.testing.assert_allclose(run_native(forward, batch, isa, pool), expected, rtol=3e-6, atol=1e-6)
        assert_same_bits(run_native(forward, batch, isa, pool), run_native(forward, batch, "scalar", pool))


@pytest.mark.parametrize("isa", ISAS)
def test_silu_of_large_arguments_neither_overflows_nor_loses_sign(isa, pool):
    gate = np.array([[-1e30, -200, -89, -88, -87, -1e-30, 0, 1e-30, 88, 200, 1e30]], np.float32)
    forward = lambda ops: ops.select_rows(  # noqa: E731  # one expression, used once
        ops.silu_mul(ops.embed(pack_f32(gate, pool)), ops.embed(pack_f32(np.ones_like(gate), pool)))
    )
    actual = run_native(forward, make_token_batch(1), isa, pool)[0]
    assert np.all(np.isfinite(actual))
    assert np.all(np.abs(actual[:5]) < 1e-7 * np.abs(gate[0, :5]))
    np.testing.assert_array_equal(actual[6:], gate[0, 6:] * np.where(gate[0, 6:] < 1e-20, 0.5, 1))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("pairing", ["adjacent", "halves"])
@pytest.mark.parametrize(("head_dim", "num_dims"), [(8, 8), (24, 24), (64, 64), (64, 32)])
def test_rope_equals_the_reference(isa, pairing, head_dim, num_dims, rng, pool):
    x = pack_f32(rng.standard_normal((40, 3 * head_dim)), pool)
    rope = RopeConfig(num_dims=num_dims, theta=10000.0, pairing=pairing)
    forward = lambda ops: ops.select_rows(ops.rope(ops.embed(x), rope, head_dim))  # noqa: E731  # one expression
    batch = make_token_batch(40)
    np.testing.assert_allclose(
        run_native(forward, batch, isa, pool), run_by_reference(forward, batch), rtol=1e-5, atol=2e-6
    )
    assert_same_bits(run_native(forward, batch, isa, pool), run_native(forward, batch, "scalar", pool))
