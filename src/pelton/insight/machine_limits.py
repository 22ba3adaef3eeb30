"""`MachineLimits`: the best that this machine does, measured: reads from memory, arithmetic, handing work over.

Knows the native probes and the sizes of caches, not models. Start at `measure_limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pelton._native import ThreadPool

# Measurements done, measurements in all, what comes next.
LimitsCallback = Callable[[int, int, str], None]

_STREAM_COUNTS = (1, 2, 4, 8)
_MIN_BUFFER_BYTES = 256 << 20
_MAX_BUFFER_BYTES = 2 << 30
_UNKNOWN_L3_BYTES = 32 << 20
# A buffer this many times the last-level cache: what stays in the cache from the pass before hardly counts.
_BUFFER_PER_L3 = 8
_NUM_READS = 12
_NUM_OPS_REPEATS = 40
_NUM_STAGES = 200
_NUM_HANDOFF_REPEATS = 50


@dataclass(frozen=True, slots=True)
class Measured:
    """One quantity over the repeats of a probe: the best value (the limit) and the median."""

    best: float
    median: float


@dataclass(frozen=True, slots=True)
class ThreadLimits:
    """Limits of `num_threads` threads together. Rates per second; operations count a multiply-add as two.

    `read_streams` is how many places of memory each thread read in turn when it was fastest. `bf16_ops_per_s` is None
    without AVX512-BF16. `stage_handoff_s` is what the executor adds to a stage's work.
    """

    num_threads: int
    read_bytes_per_s: Measured
    read_streams: int
    f32_ops_per_s: Measured
    int8_ops_per_s: Measured
    bf16_ops_per_s: Measured | None
    stage_handoff_s: Measured


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """Limits with the instruction set `isa`, per number of threads; memory was read from `buffer_bytes` bytes."""

    isa: str
    buffer_bytes: int
    limits: tuple[ThreadLimits, ...]


def measure_limits(isa: str, thread_counts: Sequence[int], progress: LimitsCallback | None = None) -> MachineLimits:
    """Measure this machine, which nothing else should use meanwhile; one to two seconds per thread count.

    `isa` must be available; `progress` is called before each measurement and at the end.
    """
    # Here and not above: help must not load the native module.
    from pelton._native import ThreadPool

    buffer_bytes = choose_buffer_bytes(read_l3_bytes())
    num_steps = 3 * len(thread_counts)
    limits = []
    for index, num_threads in enumerate(thread_counts):

        def report(step: int, what: str, index: int = index, num_threads: int = num_threads) -> None:
            if progress is not None:
                progress(3 * index + step, num_steps, f"{what}, {num_threads} thread{'s' * (num_threads > 1)}")

        limits.append(_measure_threads(ThreadPool(num_threads), isa, buffer_bytes, report))
    if progress is not None:
        progress(num_steps, num_steps, "")
    return MachineLimits(isa, buffer_bytes, tuple(limits))


def merge_limits(first: ThreadLimits, second: ThreadLimits) -> ThreadLimits:
    """The better of two measurements of the same threads: a shared machine is not equally fast all the time."""

    def higher(a: Measured, b: Measured) -> Measured:
        return Measured(max(a.best, b.best), max(a.median, b.median))

    bf16 = [each for each in (first.bf16_ops_per_s, second.bf16_ops_per_s) if each is not None]
    handoffs = (first.stage_handoff_s, second.stage_handoff_s)
    return ThreadLimits(
        num_threads=first.num_threads,
        read_bytes_per_s=higher(first.read_bytes_per_s, second.read_bytes_per_s),
        read_streams=max(first, second, key=lambda each: each.read_bytes_per_s.best).read_streams,
        f32_ops_per_s=higher(first.f32_ops_per_s, second.f32_ops_per_s),
        int8_ops_per_s=higher(first.int8_ops_per_s, second.int8_ops_per_s),
        bf16_ops_per_s=higher(bf16[0], bf16[-1]) if bf16 else None,
        stage_handoff_s=Measured(min(h.best for h in handoffs), min(h.median for h in handoffs)),
    )


def choose_buffer_bytes(l3_bytes: int | None) -> int:
    """Size of the buffer to read: far larger than the last-level cache (None: not known)."""
    wanted = _BUFFER_PER_L3 * (l3_bytes or _UNKNOWN_L3_BYTES)
    return min(max(wanted, _MIN_BUFFER_BYTES), _MAX_BUFFER_BYTES)


def read_l3_bytes(cache: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int | None:
    """Size of the last-level cache in bytes, as Linux describes it; None if it does not."""
    sizes = []
    for path in cache.glob("index*/size"):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
        digits = text.rstrip("KMG")
        if digits.isdigit():
            sizes.append(int(digits) * unit)
    return max(sizes, default=None)


def _measure_threads(pool: ThreadPool, isa: str, buffer_bytes: int, report: Callable[[int, str], None]) -> ThreadLimits:
    from pelton._native import measure_ops, measure_read, measure_stage_handoff

    report(0, "memory")
    reads = {n: _highest(measure_read(pool, isa, buffer_bytes, n, _NUM_READS)) for n in _STREAM_COUNTS}
    streams = max(reads, key=lambda n: reads[n].best)
    report(1, "arithmetic")
    ops = {kind: measure_ops(pool, isa, kind, _NUM_OPS_REPEATS) for kind in ("f32", "int8", "bf16")}
    report(2, "stages")
    handoff = measure_stage_handoff(pool, isa, _NUM_STAGES, _NUM_HANDOFF_REPEATS)
    return ThreadLimits(
        num_threads=pool.num_threads,
        read_bytes_per_s=reads[streams],
        read_streams=streams,
        f32_ops_per_s=_highest(ops["f32"]),
        int8_ops_per_s=_highest(ops["int8"]),
        bf16_ops_per_s=_highest(ops["bf16"]) if ops["bf16"] else None,
        stage_handoff_s=Measured(min(handoff), _find_median(handoff)),
    )


def _highest(rates: Sequence[float]) -> Measured:
    return Measured(max(rates), _find_median(rates))


def _find_median(values: Sequence[float]) -> float:
    # Here and not above: the module takes 5 ms, and `pelton plan` needs none of it.
    import statistics

    return statistics.median(values)
