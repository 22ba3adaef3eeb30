"""How busy the CPUs are, with this process and with others: `read_load`. Counters of the system, read now and then."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path

from pelton.core.trace import LoadSample

_STAT = Path("/proc/stat")
_TASKS = Path("/proc/self/task")
# Columns of /proc/stat (proc(5)): user nice system idle iowait irq softirq steal; guest times are in user already.
_BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)


def read_load() -> LoadSample | None:
    """Counters of this moment; None on a system that does not show them."""
    try:
        cpus = os.sched_getaffinity(0)
        busy_ticks = read_busy_ticks(_STAT.read_text(encoding="ascii"), cpus)
    except (OSError, ValueError, AttributeError):
        return None
    return LoadSample(
        time_s=time.perf_counter(),
        own_s=time.process_time(),
        busy_s=busy_ticks / os.sysconf("SC_CLK_TCK"),
        wait_s=read_wait_s(_TASKS),
        num_cpus=len(cpus),
    )


def read_busy_ticks(text: str, cpus: Collection[int]) -> int:
    """Clock ticks that `cpus` were busy, from the text of /proc/stat. Raises `ValueError` for what is not that."""
    ticks = 0
    for line in text.splitlines():
        name, _, columns = line.partition(" ")
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cpus:
            counts = columns.split()
            ticks += sum(int(counts[i]) for i in _BUSY_COLUMNS if i < len(counts))
    return ticks


def read_wait_s(tasks: Path) -> float | None:
    """Seconds that the threads of a process waited for a CPU, from their schedstat files (second number, nanoseconds).

    `tasks` is the process's /proc/PID/task. None if the system does not say. A thread takes its seconds along.
    """
    wait_ns, num_threads = 0, 0
    try:
        for name in os.listdir(tasks):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(tasks / name / "schedstat") as file:
                wait_ns += int(file.read().split()[1])
                num_threads += 1
    except (OSError, ValueError, IndexError):
        return None
    return wait_ns / 1e9 if num_threads else None
