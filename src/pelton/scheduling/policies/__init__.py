"""Who is served first: one file per policy, and the registry that names them. Start at `base.SchedulingPolicy`."""

from __future__ import annotations

from collections.abc import Callable

from pelton.core.errors import InvalidParameterError
from pelton.scheduling.policies.base import SchedulingPolicy, Turn
from pelton.scheduling.policies.fair import FairPolicy
from pelton.scheduling.policies.fcfs import FcfsPolicy

__all__ = ["POLICIES", "SchedulingPolicy", "Turn", "make_policy"]

POLICIES: dict[str, Callable[[], SchedulingPolicy]] = {"fcfs": FcfsPolicy, "fair": FairPolicy}


def make_policy(name: str) -> SchedulingPolicy:
    """A new policy by its registered name; `InvalidParameterError` for an unknown one."""
    if name not in POLICIES:
        raise InvalidParameterError("scheduling_policy", name, "one of " + ", ".join(POLICIES))
    return POLICIES[name]()
