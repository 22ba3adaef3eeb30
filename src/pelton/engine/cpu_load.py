"""How busy the CPUs are, with this process and with others: `read_load`. Counters of the system, read now and then."""

from __future__ import annotations

import os
import time
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
        busy = _read_busy_ticks(_STAT.read_text(encoding="ascii"), cpus)
    except (OSError, ValueError, AttributeError):
        return None
    return LoadSample(
        time_s=time.perf_counter(),
        own_s=time.process_time(),
        busy_s=busy / os.sysconf("SC_CLK_TCK"),
        wait_s=_read_wait_s(),
        num_cpus=len(cpus),
    )


def _read_busy_ticks(text: str, cpus: set[int]) -> int:
    busy = 0
    for line in text.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cpus:
            busy += sum(int(columns[i]) for i in _BUSY_COLUMNS)
    return busy


def _read_wait_s() -> float | None:
    """Seconds that threads of this process waited for a CPU (the second number of schedstat, nanoseconds)."""
    wait_ns = 0
    try:
        for task in os.scandir(_TASKS):
            with open(f"{task.path}/schedstat", encoding="ascii") as file:
                wait_ns += int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return wait_ns / 1e9
