"""Inputs for kernel tests: random blocks of every GGUF type, and one-op programs run natively and by the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pelton._native import KvCache, PackedWeight, ThreadPool, available_isas, pack_weight
from pelton.compute.batch import Batch, make_batch
from pelton.compute.recorder import record_program
from pelton.compute.reference import ReferenceCache, run_reference
from pelton.quant.block_types import BLOCK_TYPES, BlockType

ISAS = available_isas()
TYPES = {block_type.name: block_type for block_type in BLOCK_TYPES.values()}
AFFINE_TYPES = [name for name in TYPES if name not in ("F32", "F16", "BF16")]
# Where a block keeps float16 numbers: byte offsets of scales and minima (ggml-common.h).
HALF_OFFSETS = {
    "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip


def make_blocks(rng: np.random.Generator, type_name: str, rows: int, cols: int) -> np.ndarray:
    """Random raw bytes [num_bytes] of a matrix; every bit pattern of codes occurs, numbers are finite."""
    block_type: BlockType = TYPES[type_name]
    if type_name == "F32":
        return rng.standard_normal((rows, cols)).astype(np.float32).view(np.uint8).reshape(-1)
    if type_name == "F16":
        return rng.standard_normal((rows, cols)).astype(np.float16).view(np.uint8).reshape(-1)
    if type_name == "BF16":
        bits = rng.standard_normal((rows, cols)).astype(np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16).view(np.uint8).reshape(-1)
    num_blocks = rows * cols // block_type.block_size
    blocks = rng.integers(0, 256, (num_blocks, block_type.block_bytes), dtype=np.uint8)
    for offset in HALF_OFFSETS[type_name]:
        halves = (rng.standard_normal(num_blocks) * 0.1).astype(np.float16)
        blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(-1)


def make_weight(rng: np.random.Generator, type_name: str, rows: int, cols: int, pool: ThreadPool) -> PackedWeight:
    """A packed random matrix."""
    return pack_weight(TYPES[type_name].ggml_type_id, rows, cols, make_blocks(rng, type_name, rows, cols), pool)


def pack_f32(values: np.ndarray, pool: ThreadPool) -> PackedWeight:
    """`values` [rows, cols] as a float32 weight; embedding its rows feeds them to an op."""
    raw = np.ascontiguousarray(values, np.float32).view(np.uint8).reshape(-1)
    return pack_weight(TYPES["F32"].ggml_type_id, *values.shape, raw, pool)


def make_token_batch(num_tokens: int) -> Batch:
    """One sequence of tokens 0, 1, ... whose rows are all sampled."""
    table = list(range(-(-num_tokens // 16)))
    return make_batch([(list(range(num_tokens)), 0, table)], list(range(num_tokens)))


def run_native(
    forward: Callable[[Any], Any], batch: Batch, isa: str, pool: ThreadPool, cache: KvCache | None = None
) -> np.ndarray:
    """Record `forward` for `isa`, run one batch and copy its result."""
    program = record_program(forward, pool, isa)
    cache = cache or KvCache(1, 1, 16, 64, "f16")
    return run_program(program, batch, cache)


def run_program(program: Any, batch: Batch, cache: KvCache) -> np.ndarray:
    """One step of a recorded program; the result is copied out of its memory."""
    return program.run(
        cache, batch.token_ids, batch.cu_seqlens, batch.context_lens, batch.block_tables, batch.sample_rows
    ).copy()


def run_by_reference(forward: Callable[[Any], Any], batch: Batch) -> np.ndarray:
    """The same forward by the NumPy reference, with an empty cache."""
    return run_reference(forward, batch, ReferenceCache())


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equality of every bit, not of values: tells -0 from 0."""
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


def shapes_of(type_name: str) -> Sequence[tuple[int, int]]:
    """(rows, cols) that are ragged in every way the type allows."""
    if type_name in ("F32", "F16", "BF16"):
        return [(1, 1), (5, 7), (16, 33), (17, 48), (50, 100)]
    unit = TYPES[type_name].block_size
    return [(1, unit), (15, 2 * unit), (16, 3 * unit), (33, unit), (64, 5 * unit)]
