"""attend on every ISA: against the reference, across chunkings, windows, batches and threads."""

from __future__ import annotations

import numpy as np
import pytest
from attention_inputs import HEADS, attend_forward, make_cache, run_chunks
from kernel_inputs import ISAS, assert_same_bits, pack_f32, run_by_reference, run_native, run_program

from pelton._native import ThreadPool
from pelton.compute.batch import make_batch
from pelton.compute.ops import AttendSpec
from pelton.compute.recorder import record_program


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("spec", [{}, {"window": 4}, {"window": 100}, {"softcap": 5.0}])
def test_attend_equals_the_reference(isa, heads, spec, rng, pool):
    for num_tokens in (1, 15, 16, 17, 300):
        forward = attend_forward(rng, pool, heads, num_tokens, **spec)
        table = list(range(-(-num_tokens // 16)))
        batch = make_batch([(list(range(num_tokens)), 0, table)], list(range(num_tokens)))
        actual = run_native(forward, batch, isa, pool, make_cache(heads))
        np.testing.assert_allclose(actual, run_by_reference(forward, batch), rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("heads", HEADS)
def test_chunks_threads_and_scattered_blocks_change_no_bit(isa, heads, rng, pool):
    num_tokens = 530
    forward = attend_forward(rng, pool, heads, num_tokens)
    blocks = rng.permutation(128)[: -(-num_tokens // 16)].tolist()
    ordered = list(range(len(blocks)))
    whole = run_chunks(forward, isa, pool, heads, num_tokens, num_tokens, ordered)
    for chunk in (7, 64, 300):
        assert_same_bits(run_chunks(forward, isa, pool, heads, num_tokens, chunk, blocks), whole)
    for threads in (1, 3):
        assert_same_bits(run_chunks(forward, isa, ThreadPool(threads), heads, num_tokens, 100, ordered), whole)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", [None, 4, 300])
def test_one_token_at_a_time_equals_the_whole(isa, window, rng, pool):
    heads, num_tokens = (4, 2, 16), 290
    forward = attend_forward(rng, pool, heads, num_tokens, window=window)
    table = list(range(-(-num_tokens // 16)))
    whole = run_chunks(forward, isa, pool, heads, num_tokens, num_tokens, table)
    assert_same_bits(run_chunks(forward, isa, pool, heads, num_tokens, 1, table), whole)


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa != "scalar"])
def test_every_isa_gives_the_bits_of_the_scalar_code(isa, rng, pool):
    for heads in HEADS:
        forward = attend_forward(rng, pool, heads, 280, softcap=20.0)
        table = list(range(18))
        expected = run_chunks(forward, "scalar", pool, heads, 280, 280, table)
        assert_same_bits(run_chunks(forward, isa, pool, heads, 280, 280, table), expected)


@pytest.mark.parametrize("isa", ISAS)
def test_window_counts_keys_as_i_minus_j_below_w(isa, pool):
    # Equal scores and one-hot values: the output shows which keys were seen, each with weight 1 / count.
    num_tokens, window = 7, 4
    zeros, one_hot = np.zeros((num_tokens, 16)), np.eye(num_tokens, 16)
    q, k, v = pack_f32(zeros, pool), pack_f32(zeros, pool), pack_f32(one_hot, pool)
    spec = AttendSpec(layer=0, num_heads=1, num_kv_heads=1, head_dim=16, scale=1.0, window=window)
    forward = lambda ops: ops.select_rows(ops.attend(ops.embed(q), ops.embed(k), ops.embed(v), spec))  # noqa: E731
    for chunk in (7, 2, 1):
        seen = run_chunks(forward, isa, pool, (1, 1, 16), num_tokens, chunk, [0])
        assert [np.count_nonzero(row) for row in seen] == [1, 2, 3, 4, 4, 4, 4]
        for i, row in enumerate(seen):
            assert np.flatnonzero(row).tolist() == [j for j in range(num_tokens) if 0 <= i - j < window]


@pytest.mark.parametrize("isa", ISAS)
def test_a_sequence_has_the_same_bits_alone_and_among_others(isa, rng, pool):
    heads = (9, 3, 64)
    forward = attend_forward(rng, pool, heads, 400)
    program = record_program(forward, pool, isa)
    sequences = [
        (list(range(70)), [0, 1, 2, 3, 4]),
        (list(range(70, 71)), [9]),
        (list(range(71, 400)), list(range(20, 41))),
    ]
    together = make_batch([(ids, 0, table) for ids, table in sequences], list(range(400)))
    batched = run_program(program, together, make_cache(heads))
    row = 0
    for ids, table in sequences:
        alone = run_program(program, make_batch([(ids, 0, table)], list(range(len(ids)))), make_cache(heads))
        assert_same_bits(batched[row : row + len(ids)], alone)
        row += len(ids)


def test_high_block_ids_reach_past_two_gibibytes(pool, rng):
    # 64 KiB blocks: block 40000 starts at 2.6 GB; memory is committed only where written.
    heads = (4, 4, 256)
    forward = attend_forward(rng, pool, heads, 20)
    batch_low = make_batch([(list(range(20)), 0, [0, 1])], list(range(20)))
    batch_high = make_batch([(list(range(20)), 0, [40000, 39999])], list(range(20)))
    cache = make_cache(heads, num_blocks=40001)
    assert cache.bytes_per_block * 40000 > 2**31
    program = record_program(forward, pool, ISAS[-1])
    assert_same_bits(run_program(program, batch_high, cache), run_program(program, batch_low, cache))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"token_ids": [99]}, "vocabulary"),
        ({"token_ids": [-1]}, "vocabulary"),
        ({"block_tables": [[128]]}, "not there"),
        ({"block_tables": [[-1]]}, "not there"),
        ({"context_lens": [17]}, "too short"),
        ({"context_lens": [0]}, "below"),
        ({"cu_seqlens": [0, 2]}, "cu_seqlens"),
        ({"sample_rows": [1]}, "sample row"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(change, message, rng, pool):
    heads = (1, 1, 16)
    program = record_program(attend_forward(rng, pool, heads, 4), pool, ISAS[-1])
    batch = {"token_ids": [0], "cu_seqlens": [0, 1], "context_lens": [1], "block_tables": [[0]], "sample_rows": [0]}
    arrays = {key: np.array(value, np.int32) for key, value in (batch | change).items()}
    with pytest.raises(ValueError, match=message):
        program.run(make_cache(heads), **arrays)
