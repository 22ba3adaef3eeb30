"""Print how many bytes a second this machine reads from memory with so many threads: the limit of decode.

    python read_bandwidth.py 2

One process per thread looks in a buffer of its own, far larger than any cache, for a byte that is not there: `memchr`
of the C library, which compares a vector a cycle. The best of several passes counts. Standard library only, and nothing
of Pelton, so that the limit is not measured with the code that is held against it. Start at `measure`.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from multiprocessing.synchronize import Barrier
from typing import Any

BUFFER_BYTES = 512 << 20
NUM_PASSES = 8


def _read(barrier: Barrier, results: Any) -> None:  # Any: multiprocessing's queue has no public generic type
    # Written, not only mapped: untouched pages would all be one page of zeros.
    values = bytearray(b"\1") * BUFFER_BYTES
    for _ in range(NUM_PASSES):
        barrier.wait()
        begin = time.monotonic()
        values.find(b"\2")
        results.put((begin, time.monotonic()))
        barrier.wait()


def measure(num_threads: int) -> float:
    """Bytes per second of `num_threads` together, the best pass."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(num_threads + 1), context.Queue()
    processes = [context.Process(target=_read, args=(barrier, results)) for _ in range(num_threads)]
    for process in processes:
        process.start()
    best = 0.0
    for _ in range(NUM_PASSES):
        barrier.wait()
        barrier.wait()
        times = [results.get() for _ in range(num_threads)]
        elapsed_s = max(end for _, end in times) - min(begin for begin, _ in times)
        best = max(best, num_threads * BUFFER_BYTES / elapsed_s)
    for process in processes:
        process.join()
    return best


if __name__ == "__main__":
    print(measure(int(sys.argv[1])))
