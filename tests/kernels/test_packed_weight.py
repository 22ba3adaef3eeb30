"""Packing is lossless for every GGUF type: what comes back equals the published layout, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_inputs import TYPES, assert_same_bits, make_blocks, shapes_of

from pelton._native import ThreadPool, pack_weight
from pelton.quant.dequantize import dequantize


@pytest.mark.parametrize("type_name", TYPES)
def test_packed_weights_dequantize_to_the_blocks_they_came_from(type_name, rng, pool):
    for rows, cols in shapes_of(type_name):
        data = make_blocks(rng, type_name, rows, cols)
        weight = pack_weight(TYPES[type_name].ggml_type_id, rows, cols, data, pool)
        expected = dequantize(data, TYPES[type_name], (rows, cols))
        # Adding 0 turns -0 into 0: the sign of a zero is the only thing a code may lose.
        assert_same_bits(weight.dequantize() + np.float32(0), expected + np.float32(0))


def test_packing_gives_the_same_bytes_on_one_thread_and_on_three(rng):
    data = make_blocks(rng, "Q4_K", 77, 512)
    one = pack_weight(TYPES["Q4_K"].ggml_type_id, 77, 512, data, ThreadPool(1))
    three = pack_weight(TYPES["Q4_K"].ggml_type_id, 77, 512, data, ThreadPool(3))
    assert_same_bits(one.dequantize(), three.dequantize())


@pytest.mark.parametrize(
    ("rows", "cols", "num_bytes", "message"),
    [(2, 33, 36, "multiple of 32"), (2, 32, 35, "bytes"), (0, 32, 0, "rows"), (2, 32, 54, "bytes")],
)
def test_sizes_that_do_not_agree_are_refused(rows, cols, num_bytes, message, pool):
    with pytest.raises(ValueError, match=message):
        pack_weight(TYPES["Q4_0"].ggml_type_id, rows, cols, np.zeros(num_bytes, np.uint8), pool)


def test_an_unknown_type_id_is_refused(pool):
    with pytest.raises(ValueError, match="type id 99"):
        pack_weight(99, 1, 32, np.zeros(18, np.uint8), pool)
