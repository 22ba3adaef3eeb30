"""Who used the CPUs while something ran: this process, others, and how long its threads waited for one.

Pure arithmetic over readings of counters (`core/trace.LoadSample`). Start at `measure_load`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pelton.core.trace import LoadSample

# A span between two readings says something of a request that fills at least this share of it.
_MIN_OVERLAP = 0.25
# Others that use less than this share of the CPUs are the noise of every system.
QUIET_SHARE = 0.1
# Threads that wait for less than this share of the time lose nothing worth telling.
_MIN_WAIT_SHARE = 0.1
_MAX_LOST = 0.9


@dataclass(frozen=True, slots=True)
class Load:
    """Means over `seconds`: CPUs that this process and others kept busy, of `num_cpus` that it may use.

    `waiting` is how many of its threads were ready to run and had no CPU; None if the system does not say.
    """

    seconds: float
    own_cpus: float
    foreign_cpus: float
    waiting: float | None
    num_cpus: int

    @property
    def is_shared(self) -> bool:
        """Whether others use more than every system does by itself."""
        return self.foreign_cpus >= QUIET_SHARE * self.num_cpus


def measure_load(samples: Sequence[LoadSample], start_s: float, end_s: float) -> Load | None:
    """The load between two times; None if no readings lie near enough."""
    seconds = own_s = foreign_s = wait_s = 0.0
    has_wait = True
    num_cpus = 0
    for before, after in itertools.pairwise(samples):
        span_s = after.time_s - before.time_s
        overlap_s = min(after.time_s, end_s) - max(before.time_s, start_s)
        if span_s <= 0 or overlap_s < _MIN_OVERLAP * span_s:
            continue
        seconds += span_s
        own_s += after.own_s - before.own_s
        foreign_s += max((after.busy_s - before.busy_s) - (after.own_s - before.own_s), 0.0)
        if before.wait_s is None or after.wait_s is None:
            has_wait = False
        else:
            # A thread that ends takes its count with it.
            wait_s += max(after.wait_s - before.wait_s, 0.0)
        num_cpus = after.num_cpus
    if seconds <= 0:
        return None
    waiting = wait_s / seconds if has_wait else None
    return Load(seconds, own_s / seconds, foreign_s / seconds, waiting, num_cpus)


def estimate_neighbours_share(load: Load | None, num_threads: int) -> float:
    """Share (0 to 1) of computing time lost to others: where threads and they together want more CPUs than there are.

    0 where that is not known. What the threads' own waiting says counts if it is more.
    """
    if load is None or not load.is_shared or num_threads > load.num_cpus:
        return 0.0
    wanted = num_threads + load.foreign_cpus
    lost = max(wanted - load.num_cpus, 0.0) / wanted
    waited = 0.0 if load.waiting is None else load.waiting / num_threads
    return min(max(lost, waited), _MAX_LOST)


def estimate_own_threads_share(load: Load | None, num_threads: int, num_cpus: int | None) -> float:
    """Share (0 to 1) of computing time lost because the engine's own threads stand in each other's way.

    They do where they are more than the CPUs, and where they wait for a CPU though nobody else uses one.
    """
    num_cpus = num_cpus if load is None else load.num_cpus
    waited = 0.0 if load is None or load.waiting is None else load.waiting / num_threads
    if num_cpus is not None and num_threads > num_cpus:
        return min(max(1.0 - num_cpus / num_threads, waited), _MAX_LOST)
    if load is None or load.is_shared or waited < _MIN_WAIT_SHARE:
        return 0.0
    return min(waited, _MAX_LOST)
