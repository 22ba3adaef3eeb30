"""Every op and weight format on every instruction set: GB/s, Gop/s or nanoseconds per element.

    python bench/kernels.py                                    # all of it: some minutes
    python bench/kernels.py --filter "linear Q4_K" --threads 1,2 --isa avx512

Each case is checked first: its result must have the bits of the scalar code, or it is not timed. The times are those of
the program's own nodes, so Python costs nothing. Few rows read weights, and attention reads K and V, that are larger
together than the caches; many rows stay on one matrix. Prints a table, or a JSON object per line with --json. Start at
`run_case`; the cases are in `kernel_cases.py`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kernel_cases import Case, list_cases
from pelton._native import KvCache, Program, ThreadPool, available_isas
from pelton.compute.recorder import record_program

# Seconds of timed runs per case, and the least number of them.
BUDGET_S = 0.15
MIN_REPEATS = 3
MAX_ATTEMPTS = 10_000
# Plain code is there to be right; large batches of it would take minutes.
MAX_SCALAR_ROWS = 4


def run_step(program: Program, cache: KvCache, case: Case) -> np.ndarray:
    """One step of a case's batch; the result is copied out."""
    batch = case.batch
    arrays = (batch.token_ids, batch.cu_seqlens, batch.context_lens, batch.block_tables, batch.sample_rows)
    return np.array(program.run(cache, *arrays))


def make_cache(case: Case, pool: ThreadPool) -> KvCache:
    """A KV cache for the case, its context filled by a program that looks at one key per token."""
    cache = KvCache(*case.cache_shape, "f16")
    if case.fill is not None and case.fill_batch is not None:
        batch = case.fill_batch
        arrays = (batch.token_ids, batch.cu_seqlens, batch.context_lens, batch.block_tables, batch.sample_rows)
        record_program(case.fill, pool, available_isas()[-1]).run(cache, *arrays)
    return cache


def is_right(case: Case, isa: str, pool: ThreadPool) -> bool:
    """Whether the case's small twin gives the bits of the scalar code."""
    small = case.small
    results = []
    for each in ("scalar", isa):
        program = record_program(small.forward, pool, each)
        results.append(run_step(program, make_cache(small, pool), small))
    return bool(np.array_equal(results[0].view(np.uint32), results[1].view(np.uint32)))


def time_case(case: Case, isa: str, pool: ThreadPool) -> list[tuple[float, float, float]]:
    """(seconds, bytes, operations) of the case's nodes, one per timed run after a warm-up.

    Times are those of thread 0; runs in which other threads left it nothing (a single row, say) do not count.
    """
    program = record_program(case.forward, pool, isa)
    cache = make_cache(case, pool)
    run_step(program, cache, case)
    runs: list[tuple[float, float, float]] = []
    start_s = time.perf_counter()
    for attempt in itertools.count():
        is_enough = len(runs) >= MIN_REPEATS and time.perf_counter() - start_s >= BUDGET_S
        if is_enough or attempt == MAX_ATTEMPTS:
            break
        run_step(program, cache, case)
        nodes = [node for node in program.timings() if node[0].startswith(case.node_kinds)]
        seconds = sum(node[1] for node in nodes)
        if seconds > 0:
            runs.append((seconds, sum(node[2] for node in nodes), sum(node[3] for node in nodes)))
    return runs


def run_case(case: Case, isa: str, pool: ThreadPool) -> dict[str, Any]:
    """Check, then time; the result as a JSON object, with `error` in place of numbers if the check fails."""
    result: dict[str, Any] = {
        "op": case.op, "format": case.format, "shape": case.shape, "rows": case.rows, "isa": isa,
        "threads": pool.num_threads,
    }  # fmt: skip
    if not is_right(case, isa, pool):
        return {**result, "error": "differs from the scalar code"}
    runs = time_case(case, isa, pool)
    if not runs:
        return {**result, "error": "thread 0 took no part"}
    seconds = [run[0] for run in runs]
    median_s, (_, num_bytes, num_ops) = statistics.median(seconds), runs[0]
    result |= {"median_s": median_s, "min_s": min(seconds), "max_s": max(seconds), "num_repeats": len(runs)}
    if case.num_elements:
        result["ns_per_element"] = median_s * 1e9 / case.num_elements
    else:
        result |= {"gb_per_s": num_bytes / median_s / 1e9, "gop_per_s": num_ops / median_s / 1e9}
    return result


def format_line(result: dict[str, Any]) -> str:
    """One line of the table."""
    name = f"{result['op']:16} {result['format']:5} {result['shape']:>12} {result['rows']:>5} rows  {result['isa']:7}"
    name += f" {result['threads']:2} thr "
    if "error" in result:
        return f"{name} FAILED: {result['error']}"
    spread = (result["max_s"] - result["min_s"]) / result["median_s"] * 50
    if "ns_per_element" in result:
        return f"{name} {result['ns_per_element']:9.3f} ns/element                  +-{spread:3.0f} %"
    return f"{name} {result['gb_per_s']:9.2f} GB/s {result['gop_per_s']:9.1f} Gop/s      +-{spread:3.0f} %"


def run_all(patterns: Sequence[str], isas: Sequence[str], thread_counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Results of all cases whose name holds every word of a pattern (of all, if there are no patterns)."""
    pools = [ThreadPool(n) for n in thread_counts]
    for name, make_case in list_cases():
        if patterns and not any(all(word in name.split() for word in p.split()) for p in patterns):
            continue
        case = make_case()
        for isa in isas:
            if isa == "scalar" and case.rows > MAX_SCALAR_ROWS:
                continue
            for pool in pools:
                yield run_case(case, isa, pool)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases asked for; 1 if any check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", action="append", default=[], help='words of a case\'s name, as in "linear Q4_1"')
    parser.add_argument("--isa", default=",".join(available_isas()[::-1]), help="instruction sets, separated by commas")
    parser.add_argument("--threads", default="1", help="numbers of threads, separated by commas")
    parser.add_argument("--json", action="store_true", help="JSON lines instead of the table")
    options = parser.parse_args(arguments)
    is_all_right = True
    threads = [int(n) for n in options.threads.split(",")]
    for result in run_all(options.filter, options.isa.split(","), threads):
        is_all_right &= "error" not in result
        sys.stdout.write((json.dumps(result) if options.json else format_line(result)) + "\n")
        sys.stdout.flush()
    return 0 if is_all_right else 1


if __name__ == "__main__":
    sys.exit(main())
