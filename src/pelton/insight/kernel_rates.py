"""`KernelRates`: how fast Pelton's own nodes run on this machine, measured with small programs. Seconds, no models.

The limits of `machine_limits.py` say what the machine could do; kernels reach a share of them that differs between
processors (docs/performance.md, docs/plan.md), so predictions need it measured. A few matrices in one format, and
attention over one KV type, each at a handful of row counts: about a second each. Start at `measure_linear`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pelton.insight.weight_formats import get_weight_format

if TYPE_CHECKING:
    from pelton._native import KvCache, PackedWeight, Program, ThreadPool
    from pelton.compute.recorder import Recorded, Recorder

# Bytes that a step reads, weights and K/V together: what the caches keep from one step to the next depends on it. On a
# Xeon with a large shared cache, decode read 45, 33 and 20 GB/s at 59, 94 and 177 MB of weights (2026-11-29).
STEP_BYTES = (64e6, 96e6, 192e6)
# Rows that share one pass over the weights; from 64 on arithmetic decides, and one size is enough.
ROW_COUNTS = (1, 2, 4, 8, 16, 32, 64, 256)
_NUM_ROW_COUNTS_ONCE = 6

# Small matrices, so that what stages cost beside their arithmetic is in the rates.
_HIDDEN, _INNER = 512, 1536
# The first steps bring what stays into the caches.
_NUM_WARM_UP = 12
_NUM_REPEATS = 7
_NUM_SHARES = 3
_HEAD_DIM, _NUM_KV_HEADS, _NUM_ATTEND_LAYERS = 64, 4, 16
_CONTEXT = 2048
# Together 0.5 GB of K and V in f16: far more than caches hold.
_NUM_REQUESTS = 16
ATTEND_BYTES = (64e6, 512e6)
_NUM_PREFILL = 256


@dataclass(frozen=True, slots=True)
class LinearRates:
    """Seconds per weight of a linear by `STEP_BYTES` and `ROW_COUNTS`, and of the work row by row.

    `rest_s_one` and `rest_s_many` are seconds per element of normalising, gating and quantising one row and many.
    """

    seconds: tuple[tuple[float, ...], ...]
    rest_s_one: float
    rest_s_many: float

    def predict(self, num_rows: float, step_bytes: float) -> float:
        """Seconds per weight at `num_rows` rows in a step that reads `step_bytes`: between what was measured."""
        if num_rows > ROW_COUNTS[-1]:
            # Weights stay in the caches while rows pass: the time per row is that of the largest count.
            return self.seconds[0][-1] * num_rows / ROW_COUNTS[-1]
        by_rows = [interpolate(num_rows, ROW_COUNTS, each) for each in self.seconds]
        return interpolate(step_bytes, STEP_BYTES, by_rows)


@dataclass(frozen=True, slots=True)
class AttendRates:
    """Operations per second of attention.

    `decode_near` and `decode_far`: one token per request where K and V stay in the caches, and where they come from
    memory. `prefill`: a chunk of a prompt.
    """

    decode_near: float
    decode_far: float
    prefill: float

    def predict(self, is_decode: bool, step_bytes: float) -> float:
        """Operations per second in a step that reads `step_bytes`."""
        if not is_decode:
            return self.prefill
        # Times are what lies between, rates are not.
        seconds = interpolate(step_bytes, ATTEND_BYTES, (1 / self.decode_near, 1 / self.decode_far))
        return 1 / seconds


def interpolate(x: float, points: Sequence[float], values: Sequence[float]) -> float:
    """Piecewise linear through (points, values), constant outside; `points` ascend."""
    for index in range(1, len(points)):
        if x < points[index]:
            share = max(x - points[index - 1], 0.0) / (points[index] - points[index - 1])
            return values[index - 1] + share * (values[index] - values[index - 1])
    return values[-1]


def measure_linear(pool: ThreadPool, isa: str, format_name: str) -> LinearRates:
    """Measure linears in a GGUF block type on `pool`'s threads, which nothing else should use meanwhile."""
    from pelton.compute.recorder import record_program

    layer_bytes = 3 * get_weight_format(format_name).count_bytes(_INNER, _HIDDEN)
    cache = _make_cache("f16", 1)
    by_size: list[tuple[float, ...]] = []
    rests = [0.0, 0.0]
    for step_bytes in STEP_BYTES:
        weights = _make_weights(pool, format_name, max(round(step_bytes / layer_bytes), 1))
        program = record_program(_make_forward(weights), pool, isa)
        num_weights = sum(weight.rows * weight.cols for weight in weights[1:])
        num_elements = num_weights / (3 * _HIDDEN * _INNER) * (_HIDDEN + _INNER)
        is_first = not by_size
        seconds = []
        for num_rows in ROW_COUNTS if is_first else ROW_COUNTS[:_NUM_ROW_COUNTS_ONCE]:
            times = _run(program, cache, [(0, num_rows)], num_warm_up=_NUM_WARM_UP if num_rows == 1 else 2)
            seconds.append(sum(times[kind] for kind in times if kind.startswith("linear")) / num_weights)
            rest = sum(times[kind] for kind in times if not kind.startswith(("linear", "embed", "select")))
            if is_first and num_rows in (ROW_COUNTS[0], ROW_COUNTS[-1]):
                rests[num_rows > 1] = rest / (num_rows * num_elements)
        by_size.append((*seconds, *(by_size[0][len(seconds) :] if by_size else ())))
    return LinearRates(tuple(by_size), rests[0], rests[1])


def measure_attend(pool: ThreadPool, isa: str, kv_cache_dtype: str, group: int) -> AttendRates:
    """Measure attention with `group` query heads per key/value head."""
    from pelton.compute.ops import AttendSpec
    from pelton.compute.recorder import record_program

    width = _NUM_KV_HEADS * _HEAD_DIM
    queries, keys = _pack(pool, "f16", 16, group * width), _pack(pool, "f16", 16, width)

    def forward(ops: Recorder) -> Recorded:
        x, k = ops.embed(queries), ops.embed(keys)
        for layer in range(_NUM_ATTEND_LAYERS):
            spec = AttendSpec(
                layer=layer,
                num_heads=group * _NUM_KV_HEADS,
                num_kv_heads=_NUM_KV_HEADS,
                head_dim=_HEAD_DIM,
                scale=0.125,
            )
            x = ops.attend(x, k, k, spec)
        return ops.select_rows(x)

    program = record_program(forward, pool, isa)
    cache = _make_cache(kv_cache_dtype, _NUM_REQUESTS)

    def measure(sequences: Sequence[tuple[int, int]], num_keys: float, num_warm_up: int) -> float:
        seconds = _run(program, cache, sequences, num_warm_up)["attend"]
        return 4.0 * group * width * _NUM_ATTEND_LAYERS * num_keys / seconds

    chunk_keys = _NUM_PREFILL * (_CONTEXT - _NUM_PREFILL + (_NUM_PREFILL + 1) / 2)
    return AttendRates(
        decode_near=measure([(_CONTEXT - 1, 1)], _CONTEXT, _NUM_WARM_UP),
        decode_far=measure([(_CONTEXT - 1, 1)] * _NUM_REQUESTS, _NUM_REQUESTS * _CONTEXT, 2),
        prefill=measure([(_CONTEXT - _NUM_PREFILL, _NUM_PREFILL)], chunk_keys, 1),
    )


def _pack(pool: ThreadPool, format_name: str, rows: int, cols: int) -> PackedWeight:
    """A matrix of zeros: its values change no time."""
    import numpy as np

    from pelton._native import pack_weight

    block_type = get_weight_format(format_name).block_type
    assert block_type is not None, "callers measure GGUF block types only"
    data = np.zeros(block_type.count_bytes(rows * cols), np.uint8)
    return pack_weight(block_type.ggml_type_id, rows, cols, data, pool)


def _make_weights(pool: ThreadPool, format_name: str, num_layers: int) -> list[PackedWeight]:
    """A small embedding, then gate, up and down of each layer."""
    weights = [_pack(pool, "f16", 16, _HIDDEN)]
    for _ in range(num_layers):
        weights += [_pack(pool, format_name, _INNER, _HIDDEN), _pack(pool, format_name, _INNER, _HIDDEN)]
        weights.append(_pack(pool, format_name, _HIDDEN, _INNER))
    return weights


def _make_forward(weights: Sequence[PackedWeight]) -> Callable[[Recorder], Recorded]:
    """Feed-forward layers: every row goes through all of them."""
    import numpy as np

    norm = np.ones(_HIDDEN, np.float32)

    def forward(ops: Recorder) -> Recorded:
        x = ops.embed(weights[0])
        for index in range(len(weights) // 3):
            gate, up, down = weights[1 + 3 * index : 4 + 3 * index]
            h = ops.rms_norm(x, norm, 1e-5)
            x = ops.add(x, ops.linear(ops.silu_mul(ops.linear(h, gate), ops.linear(h, up)), down))
        return ops.select_rows(x)

    return forward


def _make_cache(kv_cache_dtype: str, num_requests: int) -> KvCache:
    from pelton._native import KvCache

    num_blocks = num_requests * _CONTEXT // 16
    cache = KvCache(_NUM_ATTEND_LAYERS, _NUM_KV_HEADS, _HEAD_DIM, num_blocks, kv_cache_dtype)
    # Memory that was never written is one shared page of zeros, and reading it would be far too fast.
    zeros = bytes(cache.block_data_bytes)
    for block in range(num_blocks):
        cache.set_block(block, zeros)
    return cache


def _run(program: Program, cache: KvCache, sequences: Sequence[tuple[int, int]], num_warm_up: int) -> dict[str, float]:
    """Seconds by kind of node in a step of (tokens before, tokens) per request: shares of the median step.

    The time of one node can be a neighbour's: a thread that comes late skips what others did, and charges its wait to
    what it does next. Over whole steps that evens out; medians of single nodes may even be zero.
    """
    import statistics

    from pelton.compute.batch import make_batch

    num_blocks = _CONTEXT // 16
    tables = [list(range(index * num_blocks, (index + 1) * num_blocks)) for index in range(len(sequences))]
    batch = make_batch([([0] * n, depth, table) for (depth, n), table in zip(sequences, tables, strict=True)])

    def run_once() -> float:
        start_s = time.perf_counter()
        program.run(cache, batch.token_ids, batch.cu_seqlens, batch.context_lens, batch.block_tables, batch.sample_rows)
        return time.perf_counter() - start_s

    for _ in range(num_warm_up):
        run_once()
    # Nothing between these: the threads would fall asleep.
    step_s = statistics.median(run_once() for _ in range(_NUM_REPEATS))
    sums: dict[str, float] = {}
    for _ in range(_NUM_SHARES):
        run_once()
        for kind, seconds, *_ in program.timings():
            sums[kind] = sums.get(kind, 0.0) + seconds
    return {kind: step_s * seconds / sum(sums.values()) for kind, seconds in sums.items()}
