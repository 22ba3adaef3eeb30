"""The choices that stand before native code runs: which ISA, how many threads. Pools are made here.

Entry points: `choose_isa`, `choose_threads`.
"""

from __future__ import annotations

import os
from pathlib import Path

from pelton._native import available_isas, detect_isa
from pelton.core.errors import ConfigError

# More than this only wait for each other; a test of few CPUs may still oversubscribe them.
_MAX_THREADS_PER_CPU = 8


def choose_isa(requested: str | None) -> str:
    """Return `requested` if this machine has it, the best one if None. Raises `ConfigError` naming those available."""
    if requested is None:
        return detect_isa()
    if requested not in available_isas():
        raise ConfigError(f"isa is {requested!r}; available on this machine: {', '.join(available_isas())}")
    return requested


def choose_threads(requested: int | None) -> int:
    """Return `requested`, or the default if None. Raises `ConfigError` for more than 8 threads per usable CPU."""
    if requested is None:
        return count_default_threads()
    limit = _MAX_THREADS_PER_CPU * len(os.sched_getaffinity(0))
    if requested > limit:
        raise ConfigError(f"threads is {requested}; allowed on this machine: 1 to {limit}")
    return requested


def count_default_threads() -> int:
    """Physical cores that this process may use: its CPU affinity, and its cgroup's CPU limit rounded up."""
    allowed = os.sched_getaffinity(0)
    cores = {_read_core_siblings(cpu) for cpu in allowed}
    limit = _read_cgroup_limit()
    return max(1, len(cores) if limit is None else min(len(cores), limit))


def _read_core_siblings(cpu: int) -> str:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        return path.read_text().strip()
    except OSError:
        return str(cpu)


def _read_cgroup_limit() -> int | None:
    """CPUs granted by cgroup v2 or v1, rounded up; None without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text().strip()
            period = Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if quota in ("max", "-1") or not period.isdigit() or int(period) == 0:
        return None
    return max(1, -(-int(quota) // int(period)))
