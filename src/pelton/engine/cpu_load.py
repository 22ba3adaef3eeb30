"""How busy the CPUs are, with this process and with others: `read_load`. Counters of the system, read now and then."""

from __future__ import annotations

import os
import time
from collections.abc import Collection

from pelton.core.trace import LoadSample

_STAT = "/proc/stat"
_TASKS = "/proc/self/task"
# Columns of /proc/stat (proc(5)): user nice system idle iowait irq softirq steal; guest times are in user already.
_BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)
# A line per CPU of at most some hundred bytes, before all else.
_MAX_STAT_BYTES = 1 << 18


def read_load() -> LoadSample | None:
    """Counters of this moment; None on a system that does not show them."""
    try:
        cpus = os.sched_getaffinity(0)
        busy_ticks = read_busy_ticks(_read(_STAT, _MAX_STAT_BYTES), cpus)
    except (OSError, ValueError, AttributeError):
        return None
    return LoadSample(
        time_s=time.perf_counter(),
        own_s=time.process_time(),
        busy_s=busy_ticks / os.sysconf("SC_CLK_TCK"),
        wait_s=read_wait_s(_TASKS),
        num_cpus=len(cpus),
    )


def read_busy_ticks(text: bytes, cpus: Collection[int]) -> int:
    """Clock ticks that `cpus` were busy, from the text of /proc/stat. Raises `ValueError` for what is not that."""
    ticks = 0
    for line in text.splitlines():
        if not line.startswith(b"cpu"):
            break
        name, *columns = line.split()
        if name[3:].isdigit() and int(name[3:]) in cpus:
            ticks += sum(int(columns[i]) for i in _BUSY_COLUMNS if i < len(columns))
    return ticks


def read_wait_s(tasks: str) -> float | None:
    """Seconds that the threads of a process waited for a CPU, from their schedstat files (second number, nanoseconds).

    `tasks` is the process's /proc/PID/task. None if the system does not say. A thread takes its seconds along.
    """
    wait_ns, num_threads = 0, 0
    try:
        for name in os.listdir(tasks):
            try:
                wait_ns += int(_read(f"{tasks}/{name}/schedstat", 256).split()[1])
            except (FileNotFoundError, ProcessLookupError):  # the thread has ended
                continue
            num_threads += 1
    except (OSError, ValueError, IndexError):
        return None
    return wait_ns / 1e9 if num_threads else None


def _read(path: str, max_bytes: int) -> bytes:
    """The beginning of a file. Without Python's buffers: the engine's thread waits for it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, max_bytes)
    finally:
        os.close(descriptor)
