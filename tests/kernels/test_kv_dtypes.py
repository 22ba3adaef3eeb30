"""The KV cache's dtypes on every ISA: rounding, sizes, and the same bits however a batch is cut."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from attention_inputs import HEADS, attend_forward, make_cache, run_chunks
from kernel_inputs import ISAS, assert_same_bits, pack_f32, run_native, run_program

from pelton._native import KvCache, ThreadPool
from pelton.compute.batch import make_batch
from pelton.compute.kv_rounding import round_keys, round_queries, round_values
from pelton.compute.ops import AttendSpec
from pelton.compute.recorder import record_program
from pelton.compute.reference import ReferenceCache, run_reference
from pelton.core.config import KV_CACHE_DTYPES


def attend_embedded(q, k, v, spec, ops):
    """A forward pass that is one attend over the given rows, embedded by token id."""
    return ops.select_rows(ops.attend(ops.embed(q), ops.embed(k), ops.embed(v), spec))


OTHER_DTYPES = [dtype for dtype in KV_CACHE_DTYPES if dtype != "f16"]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
@pytest.mark.parametrize("heads", [*HEADS, (2, 1, 20)])
def test_keys_and_values_are_rounded_to_the_cache_dtype(isa, dtype, heads, rng, pool):
    for num_tokens in (1, 50, 280):
        forward = attend_forward(rng, pool, heads, num_tokens)
        table = list(range(-(-num_tokens // 16)))
        batch = make_batch([(list(range(num_tokens)), 0, table)], list(range(num_tokens)))
        expected = run_reference(forward, batch, ReferenceCache(kv_dtype=dtype))
        actual = run_native(forward, batch, isa, pool, make_cache(heads, dtype=dtype))
        # A wrong code would show as 1/127 or 1/8 of a value; what is left is float32 order, and up to 280 weights over
        # codes that are off by at most 2^-15 each, and by half of that as a rule.
        tolerance = 2e-3 if dtype in ("int8", "int4") else 2e-5
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", OTHER_DTYPES)
@pytest.mark.parametrize("heads", [(4, 2, 16), (9, 3, 64), (3, 3, 80)])
def test_chunks_threads_and_scattered_blocks_change_no_bit(isa, dtype, heads, rng, pool):
    num_tokens = 530
    forward = attend_forward(rng, pool, heads, num_tokens)
    blocks = rng.permutation(128)[: -(-num_tokens // 16)].tolist()
    ordered = list(range(len(blocks)))
    whole = run_chunks(forward, isa, pool, heads, num_tokens, num_tokens, ordered, dtype)
    for chunk in (1, 7, 300):
        assert_same_bits(run_chunks(forward, isa, pool, heads, num_tokens, chunk, blocks, dtype), whole)
    assert_same_bits(run_chunks(forward, isa, ThreadPool(3), heads, num_tokens, 100, ordered, dtype), whole)


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "scalar"])
@pytest.mark.parametrize("dtype", OTHER_DTYPES)
def test_every_isa_gives_the_bits_of_the_scalar_code(isa, dtype, rng, pool):
    for heads in [*HEADS, (8, 1, 20), (8, 2, 128)]:
        forward = attend_forward(rng, pool, heads, 280, window=200)
        table = list(range(18))
        expected = run_chunks(forward, "scalar", pool, heads, 280, 280, table, dtype)
        assert_same_bits(run_chunks(forward, isa, pool, heads, 280, 280, table, dtype), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_extreme_heads_are_kept_finite(isa, dtype, pool):
    # One token attends to itself alone, so the output is its value as the cache keeps it.
    values = np.zeros((6, 32), np.float32)
    values[1] = -3.0
    values[2, 0] = 1e-30
    values[3] = np.linspace(-1e9, 1e9, 32)
    values[4] = np.linspace(100.0, 101.0, 32)
    values[5] = np.linspace(-2.0, 0.5, 32)
    weight = pack_f32(values, pool)
    spec = AttendSpec(layer=0, num_heads=1, num_kv_heads=1, head_dim=32, scale=1.0)
    forward = lambda ops: ops.select_rows(ops.attend(*[ops.embed(weight)] * 3, spec))  # noqa: E731
    program = record_program(forward, pool, isa)
    for token in range(len(values)):
        batch = make_batch([([token], 0, [0])], [0])
        seen = run_program(program, batch, make_cache((1, 1, 32), dtype=dtype))
        np.testing.assert_allclose(seen[0], round_values(values[token], dtype), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_weights_far_below_the_largest_count_for_what_14_bits_hold(isa, dtype, pool):
    # Scores of 0 against one of s: weights e^-s and 1, values 1 and -1. Each weight is off by at most 2^-15.
    num_tokens = 200
    keys = np.zeros((num_tokens, 32), np.float32)
    keys[0, 0] = 1.0
    values = np.ones((num_tokens, 32), np.float32)
    values[0] = -1.0
    for score in (0.0, 3.0, 7.0):
        queries = np.zeros((num_tokens, 32), np.float32)
        queries[:, 0] = score
        q, k, v = pack_f32(queries, pool), pack_f32(keys, pool), pack_f32(values, pool)
        spec = AttendSpec(layer=0, num_heads=1, num_kv_heads=1, head_dim=32, scale=1.0)
        forward = functools.partial(attend_embedded, q, k, v, spec)
        seen = run_chunks(forward, isa, pool, (1, 1, 32), num_tokens, num_tokens, list(range(13)), dtype)
        weight = (num_tokens - 1) * np.exp(-score)
        np.testing.assert_allclose(seen[-1], (weight - 1) / (weight + 1), atol=num_tokens * 2.0**-15)


@pytest.mark.parametrize("isa", ISAS)
def test_keys_with_a_strong_mean_are_centered(isa, rng, pool):
    # A mean of 10 in one dimension leaves few of 32 steps to the rest, unless it is taken off.
    heads, num_tokens = (2, 1, 32), 120
    q, v = (pack_f32(rng.standard_normal((num_tokens, width)), pool) for width in (64, 32))
    keys = rng.standard_normal((num_tokens, 32)).astype(np.float32)
    keys[:, 5] += 10
    k = pack_f32(keys, pool)
    spec = AttendSpec(layer=0, num_heads=2, num_kv_heads=1, head_dim=32, scale=0.2)
    forward = functools.partial(attend_embedded, q, k, v, spec)
    batch = make_batch([(list(range(num_tokens)), 0, list(range(8)))], list(range(num_tokens)))
    expected = run_reference(forward, batch, ReferenceCache(kv_dtype="int4"))
    whole = run_native(forward, batch, isa, pool, make_cache(heads, dtype="int4"))
    np.testing.assert_allclose(whole, expected, rtol=2e-3, atol=2e-3)
    cut = run_chunks(forward, isa, pool, heads, num_tokens, 7, [5, 1, 7, 0, 2, 9, 3, 4], "int4")
    assert_same_bits(cut, whole)
    off = np.square(round_keys(keys[:, None], "int4")[:, 0] - keys)
    assert off[16:].mean() < 0.5 * off[:16].mean()  # the first block has no block before it


def test_int4_keys_have_twice_the_steps_of_int4_values(rng):
    # One block, so no center.
    heads = rng.standard_normal((16, 20, 64)).astype(np.float32)
    key_error, value_error = (np.square(f(heads, "int4") - heads).mean() for f in (round_keys, round_values))
    # Steps of 1/16 and 1/8 of the largest of 64 normal numbers, about 2.5: errors of step^2 / 12.
    assert key_error == pytest.approx((2.5 / 16) ** 2 / 12, rel=0.2)
    assert key_error < value_error / 3


def test_rotation_spreads_a_dimension_that_outweighs_the_rest(rng):
    heads = rng.standard_normal((16, 10, 64)).astype(np.float32)
    heads[..., 5] = 20.0
    error = np.square(round_keys(heads, "int4") - heads).mean()
    # Unrotated, steps would be 20 / 16; rotated, the largest of 64 is about 20 / 8 + 2.5.
    assert error < 0.5 * (20 / 16) ** 2 / 12


def test_queries_meet_coded_keys_as_int8(rng):
    head = rng.standard_normal((1, 64)).astype(np.float32)
    rounded = round_queries(head, "int8")
    # Steps of 1/127 of the largest of 64 normal numbers, about 2.5.
    assert np.sqrt(np.square(rounded - head).mean()) == pytest.approx(2.5 / 127 / 12**0.5, rel=0.4)
    np.testing.assert_array_equal(round_queries(head, "int4"), rounded)
    np.testing.assert_array_equal(round_queries(head, "f16"), head)


@pytest.mark.parametrize("dtype", KV_CACHE_DTYPES)
def test_what_a_slot_held_before_has_no_effect(dtype, rng, pool):
    heads = (2, 1, 32)
    wild = attend_forward(rng, pool, heads, 40)
    huge = pack_f32(rng.standard_normal((40, 32)) * 1e30, pool)
    cache = make_cache(heads, dtype=dtype)
    spec = AttendSpec(layer=0, num_heads=1, num_kv_heads=1, head_dim=32, scale=1.0)
    fill = lambda ops: ops.select_rows(ops.attend(*[ops.embed(huge)] * 3, spec))  # noqa: E731
    batch = make_batch([(list(range(40)), 0, [0, 1, 2])], [0])
    run_program(record_program(fill, pool, ISAS[-1]), batch, cache)
    short = make_batch([(list(range(20)), 0, [0, 1])], list(range(20)))
    used = run_native(wild, short, ISAS[-1], pool, cache)
    assert_same_bits(used, run_native(wild, short, ISAS[-1], pool, make_cache(heads, dtype=dtype)))


@pytest.mark.parametrize(("dtype", "most"), [("f16", 1.0), ("bf16", 1.0), ("f32", 2.0), ("int8", 0.53), ("int4", 0.31)])
def test_sizes_per_token_at_head_size_64(dtype, most):
    for num_layers, num_kv_heads in ((30, 3), (16, 8), (2, 1)):
        num_bytes = KvCache(num_layers, num_kv_heads, 64, 1, dtype).bytes_per_block
        elements = num_layers * num_kv_heads * 64 * 2 * 16
        # 2 bytes each in f16; blocks are padded to an odd multiple of half a page, which counts for all.
        assert num_bytes - 4096 <= most * 2 * elements
        if num_layers > 2:
            assert num_bytes <= most * KvCache(num_layers, num_kv_heads, 64, 1, "f16").bytes_per_block


def test_an_unknown_dtype_is_refused_by_name():
    with pytest.raises(ValueError, match="kv dtype is 'fp8'; allowed: f16, bf16, f32, int8, int4"):
        KvCache(1, 1, 16, 1, "fp8")


def test_the_reference_rounds_as_written():
    # Rotated, the largest dimension is 4.5 / 32, which becomes code 127.
    head = np.array([[1.0, 0.5, 3.0, 0.0]], np.float32)
    scale = np.float32(np.float16(4.5 / 32 / 127))
    signs = np.array([[(-1.0) ** (i & lane).bit_count() for lane in range(32)] for i in range(32)])
    rotated = np.array([1.0, 0.5, 3.0] + [0.0] * 29) @ signs / 32
    codes = np.clip(np.rint(rotated / scale), -127, 127)
    np.testing.assert_allclose(round_values(head, "int8"), (codes * scale @ signs)[None, :4], rtol=1e-6, atol=1e-6)
    # Alone in dimension 0, 1.0 is 1/32 in all 32 dimensions of its unit once rotated: the lowest code, -8, everywhere.
    head = np.array([[1.0, 0.0]], np.float32)
    np.testing.assert_array_equal(round_values(head, "int4"), head)
    np.testing.assert_array_equal(round_keys(head[:, None], "int4"), head[:, None])
    np.testing.assert_array_equal(
        round_values(np.array([1.0, 1.00390625, 1.01171875], np.float32), "bf16"), [1.0, 1.0, 1.015625]
    )
