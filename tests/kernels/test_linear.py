"""linear on every ISA and format, against float64 arithmetic on the same quantised activations."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_inputs import (
    AFFINE_TYPES,
    ISAS,
    TYPES,
    assert_same_bits,
    make_token_batch,
    make_weight,
    pack_f32,
    run_native,
    shapes_of,
)

from pelton._native import ThreadPool

TOKEN_COUNTS = (1, 2, 3, 7, 16, 17, 37, 50)


def quantize_rows(x: np.ndarray) -> np.ndarray:
    """Activations as the kernels see them: int8 per group of 32 with scale max/127, rounded half to even."""
    groups = x.reshape(len(x), -1, 32).astype(np.float32)
    amax = np.abs(groups).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), amax, out=np.zeros_like(amax), where=amax > 0)
    codes = np.rint(groups * inverse)
    return (codes.astype(np.float64) * (amax / np.float32(127))).reshape(x.shape)


def linear_forward(x_weight, weight):
    return lambda ops: ops.select_rows(ops.linear(ops.embed(x_weight), weight))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", TYPES)
def test_linear_equals_float64_arithmetic(type_name, isa, rng, pool):
    for rows, cols in shapes_of(type_name):
        weight = make_weight(rng, type_name, rows, cols, pool)
        x = rng.standard_normal((17, cols)).astype(np.float32)
        actual = run_native(linear_forward(pack_f32(x, pool), weight), make_token_batch(17), isa, pool)
        seen = x if weight.is_float else quantize_rows(x)
        w = weight.dequantize().astype(np.float64)
        error_scale = np.abs(seen) @ np.abs(w).T
        assert np.max(np.abs(actual - seen @ w.T) / (error_scale + 1e-9)) < 2e-6


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "scalar"])
@pytest.mark.parametrize("type_name", TYPES)
def test_every_isa_gives_the_bits_of_the_scalar_code(type_name, isa, rng, pool):
    for rows, cols in shapes_of(type_name):
        forward = linear_forward(
            pack_f32(rng.standard_normal((51, cols)) * 3, pool), make_weight(rng, type_name, rows, cols, pool)
        )
        expected = run_native(forward, make_token_batch(51), "scalar", pool)
        assert_same_bits(run_native(forward, make_token_batch(51), isa, pool), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", TYPES)
def test_a_row_has_the_same_bits_in_every_batch_size(type_name, isa, rng, pool):
    rows, cols = shapes_of(type_name)[-1]
    x = rng.standard_normal((max(TOKEN_COUNTS), cols)).astype(np.float32)
    forward = linear_forward(pack_f32(x, pool), make_weight(rng, type_name, rows, cols, pool))
    whole = run_native(forward, make_token_batch(max(TOKEN_COUNTS)), isa, pool)
    for count in TOKEN_COUNTS:
        assert_same_bits(run_native(forward, make_token_batch(count), isa, pool), whole[:count])
    for threads in (1, 3):
        again = run_native(forward, make_token_batch(max(TOKEN_COUNTS)), isa, ThreadPool(threads))
        assert_same_bits(again, whole)


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_codes_and_activations_do_not_overflow(isa, pool):
    for type_name in AFFINE_TYPES:
        block = TYPES[type_name]
        data = np.full((16 * 256 // block.block_size, block.block_bytes), 255, np.uint8)
        from kernel_inputs import HALF_OFFSETS, pack_weight

        for offset in HALF_OFFSETS[type_name]:
            data[:, offset : offset + 2] = np.array([1.0], np.float16).view(np.uint8)
        weight = pack_weight(block.ggml_type_id, 16, 256, data.reshape(-1), pool)
        for sign in (1.0, -1.0):
            x = np.full((1, 256), sign, np.float32)
            actual = run_native(linear_forward(pack_f32(x, pool), weight), make_token_batch(1), isa, pool)
            np.testing.assert_allclose(actual, x @ weight.dequantize().T, rtol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_nan_in_a_row_stays_in_that_row_as_nan(isa, rng, pool):
    x = rng.standard_normal((3, 64)).astype(np.float32)
    x[1, 5] = np.nan
    x[2, 40] = np.inf
    weight = make_weight(rng, "Q8_0", 20, 64, pool)
    actual = run_native(linear_forward(pack_f32(x, pool), weight), make_token_batch(3), isa, pool)
    assert np.all(np.isfinite(actual[0]))
    assert np.all(np.isnan(actual[1:]))


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_of_the_smallest_numbers_gives_zeros_and_not_nan(isa, rng, pool):
    x = (rng.standard_normal((2, 64)) * 1e-38).astype(np.float32)
    weight = make_weight(rng, "Q8_0", 20, 64, pool)
    actual = run_native(linear_forward(pack_f32(x, pool), weight), make_token_batch(2), isa, pool)
    np.testing.assert_allclose(actual, np.zeros_like(actual), atol=1e-34)


@pytest.mark.parametrize("isa", ISAS)
def test_residual_add_and_merged_linears_change_no_bit(isa, rng, pool):
    x = pack_f32(rng.standard_normal((9, 64)), pool)
    first, second = make_weight(rng, "Q4_1", 64, 64, pool), make_weight(rng, "Q4_1", 64, 64, pool)

    def fused(ops):
        h = ops.rms_norm(ops.embed(x), np.ones(64, np.float32), 1e-5)
        a, b = ops.linear(h, first), ops.linear(h, second)
        return ops.select_rows(ops.add(ops.silu_mul(a, b), ops.linear(h, first)))

    def alone(weight):
        return lambda ops: ops.select_rows(
            ops.linear(ops.rms_norm(ops.embed(x), np.ones(64, np.float32), 1e-5), weight)
        )

    batch = make_token_batch(9)
    a, b = run_native(alone(first), batch, isa, pool), run_native(alone(second), batch, isa, pool)
    gated = a / (1 + np.exp(-a.astype(np.float64))) * b
    np.testing.assert_allclose(run_native(fused, batch, isa, pool), gated + a, rtol=2e-5, atol=1e-5)
