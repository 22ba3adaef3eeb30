"""The cases of `kernels.py`: one-op programs over random inputs. Knows ops and formats, not clocks.

Start at `list_cases`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton._native import PackedWeight, ThreadPool, pack_weight
from pelton.compute.batch import Batch, make_batch
from pelton.compute.ops import AttendSpec
from pelton.core.model_config import RopeConfig
from pelton.quant.block_types import BLOCK_TYPES, BlockType

Forward = Callable[[Any], Any]  # Any: the ops of a recorder, and its values

SHAPES = ((2048, 2048), (576, 1536))
ROW_COUNTS = (1, 2, 4, 8, 16, 32, 512)
# Up to this many rows, weights come from memory: together they are larger than the caches.
MAX_COLD_ROWS = 16
COLD_BYTES = 96 << 20
# (query heads, KV heads, head_dim): SmolLM2-135M and Llama 3 1B.
HEADS = ((9, 3, 64), (32, 8, 64))
CONTEXT = 4096
ROW_WIDTH = 2048
BLOCK_TOKENS = 16
FLOAT_TYPES = ("F32", "F16", "BF16")
# Where blocks keep float16 numbers: byte offsets of scales and minima (ggml-common.h). Random bits would be NaN.
HALF_OFFSETS = {
    "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One op on one input. `small` is the same op on a small input, for the check; a small case is its own."""

    op: str
    format: str
    shape: str
    rows: int
    forward: Forward
    batch: Batch
    node_kinds: tuple[str, ...]
    cache_shape: tuple[int, int, int, int] = (1, 1, 16, 64)
    num_elements: int = 0
    fill: Forward | None = None
    fill_batch: Batch | None = None
    small_case: Case | None = None

    @property
    def small(self) -> Case:
        """The case to check."""
        return self.small_case or self


def list_cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """Name of every case, as words for --filter, and the function that makes it (and its inputs)."""
    for block_type in BLOCK_TYPES.values():
        for rows, cols in SHAPES:
            for num_rows in ROW_COUNTS:
                # 256 inputs share a block in K-quants.
                if cols % block_type.block_size == 0:
                    name = f"linear {block_type.name} {rows}x{cols} {num_rows}"
                    yield name, functools.partial(make_linear_case, block_type, rows, cols, num_rows)
    for heads in HEADS:
        for op, num_rows in (("attend_decode", 1), ("attend_prefill", 512)):
            name = f"{op} f16 {'/'.join(map(str, heads))} {num_rows}"
            yield name, functools.partial(make_attend_case, heads, num_rows)
    for op in ("rms_norm", "silu_mul", "rope", "quantize"):
        for num_rows in (1, 512):
            yield f"{op} f32 {ROW_WIDTH} {num_rows}", functools.partial(make_row_case, op, ROW_WIDTH, num_rows)


@functools.cache
def get_pool() -> ThreadPool:
    """The pool that packs inputs."""
    return ThreadPool(1)


def make_blocks(block_type: BlockType, rows: int, cols: int, seed: int = 1) -> np.ndarray:
    """Random raw bytes of a matrix, with finite scales."""
    rng = np.random.default_rng(seed)
    if block_type.name in FLOAT_TYPES:
        values = rng.standard_normal((rows, cols)).astype(np.float32)
        if block_type.name == "F16":
            return values.astype(np.float16).view(np.uint8).reshape(-1)
        if block_type.name == "BF16":
            return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(-1)
        return values.view(np.uint8).reshape(-1)
    blocks = rng.integers(0, 256, (rows * cols // block_type.block_size, block_type.block_bytes), dtype=np.uint8)
    for offset in HALF_OFFSETS[block_type.name]:
        halves = (rng.standard_normal(len(blocks)) * 0.1).astype(np.float16)
        blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(-1)


@functools.lru_cache(maxsize=1)
def make_weights(block_type: BlockType, rows: int, cols: int) -> list[PackedWeight]:
    """Copies of one matrix that are together larger than the caches. One set is kept, for all row counts."""
    blocks = make_blocks(block_type, rows, cols)
    count = -(-COLD_BYTES // len(blocks))
    return [pack_weight(block_type.ggml_type_id, rows, cols, blocks, get_pool()) for _ in range(count)]


@functools.cache
def make_input(num_rows: int, width: int, seed: int = 2) -> PackedWeight:
    """Rows of random float32, which an embedding of tokens 0, 1, ... feeds to an op."""
    values = np.random.default_rng(seed).standard_normal((num_rows, width)).astype(np.float32)
    return pack_weight(0, num_rows, width, values.view(np.uint8).reshape(-1), get_pool())


def make_token_batch(num_tokens: int, before: int = 0, sample_rows: list[int] | None = None) -> Batch:
    """One sequence of tokens 0, 1, ... behind a context of `before` tokens."""
    table = list(range(-(-(before + num_tokens) // BLOCK_TOKENS)))
    return make_batch([(list(range(num_tokens)), before, table)], sample_rows)


def make_linear_case(block_type: BlockType, rows: int, cols: int, num_rows: int) -> Case:
    """`num_rows` rows through matrices [rows, cols]."""

    def make_forward(x: PackedWeight, weights: list[PackedWeight]) -> Forward:
        def forward(ops: Any) -> Any:
            value = ops.embed(x)
            return ops.select_rows([ops.linear(value, weight) for weight in weights][-1])

        return forward

    weights = make_weights(block_type, rows, cols)
    used = weights if num_rows <= MAX_COLD_ROWS else weights[:1]
    shape = f"{rows}x{cols}"
    # 51 rows go through every block size of the kernels: 48 as tiles, or blocks of 16, 2 and 1.
    small = Case(
        "linear", block_type.name, shape, 51, make_forward(make_input(51, cols), weights[:1]),
        make_token_batch(51, sample_rows=list(range(51))), ("linear",),
    )  # fmt: skip
    return Case(
        "linear", block_type.name, shape, num_rows, make_forward(make_input(num_rows, cols), used),
        make_token_batch(num_rows), ("linear",), small_case=small,
    )  # fmt: skip


def make_attend_case(heads: tuple[int, int, int], num_tokens: int, context: int = CONTEXT) -> Case:
    """The last `num_tokens` tokens of a context; decode walks as many layers as leave the caches."""
    num_heads, num_kv_heads, head_dim = heads
    layer_bytes = context * num_kv_heads * head_dim * 2 * 2
    num_layers = -(-COLD_BYTES // layer_bytes) if num_tokens == 1 and context == CONTEXT else 1
    kv_width = num_kv_heads * head_dim

    def make_forward(num_rows: int, window: int | None) -> Forward:
        def forward(ops: Any) -> Any:
            q, k, v = (
                ops.embed(make_input(num_rows, w, s))
                for w, s in ((num_heads * head_dim, 2), (kv_width, 3), (kv_width, 4))
            )
            for layer in range(num_layers):
                spec = AttendSpec(layer, num_heads, num_kv_heads, head_dim, head_dim**-0.5, window=window)
                out = ops.attend(q, k, v, spec)
            return ops.select_rows(out)

        return forward

    num_blocks = -(-context // BLOCK_TOKENS)
    before = context - num_tokens
    return Case(
        op="attend_decode" if num_tokens == 1 else "attend_prefill",
        format="f16",
        shape=f"{num_heads}/{num_kv_heads}/{head_dim}",
        rows=num_tokens,
        forward=make_forward(num_tokens, None),
        batch=make_token_batch(num_tokens, before, None if context == CONTEXT else list(range(num_tokens))),
        node_kinds=("attend",),
        cache_shape=(num_layers, num_kv_heads, head_dim, num_blocks),
        fill=make_forward(before, 1),
        fill_batch=make_token_batch(before),
        # Several spans, and a last one that is not full.
        small_case=make_attend_case(heads, min(num_tokens, 40), 600) if context == CONTEXT else None,
    )


def make_row_case(op: str, width: int, num_rows: int) -> Case:
    """An op that works on rows of `width` elements. quantize is seen at the input of a small linear."""
    x, y = make_input(num_rows, width), make_input(num_rows, width, 3)
    norm = np.ones(width, np.float32)
    q4_1 = next(t for t in BLOCK_TYPES.values() if t.name == "Q4_1")
    small_weight = pack_weight(q4_1.ggml_type_id, 16, width, make_blocks(q4_1, 16, width), get_pool())
    rope = RopeConfig(num_dims=64)

    def forward(ops: Any) -> Any:
        value = ops.embed(x)
        if op == "rms_norm":
            value = ops.rms_norm(value, norm, 1e-5)
        elif op == "silu_mul":
            value = ops.silu_mul(value, ops.embed(y))
        elif op == "rope":
            value = ops.rope(value, rope, 64)
        else:
            value = ops.linear(value, small_weight)
        return ops.select_rows(value)

    return Case(
        op, "f32", str(width), num_rows, forward, make_token_batch(num_rows, sample_rows=list(range(num_rows))), (op,),
        num_elements=width * num_rows,
    )  # fmt: skip
