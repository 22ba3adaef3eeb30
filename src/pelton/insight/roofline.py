"""How fast a phase could be on this machine: the bytes and operations it needs, over the measured limits.

Pure arithmetic (the roofline model, Williams, Waterman and Patterson 2009). Start at `compute_roofline`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pelton.core.step_cost import StepCost
from pelton.insight.machine_limits import ThreadLimits

Bound = Literal["memory", "arithmetic"]


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least seconds that memory and arithmetic each allow; the longer of them is the limit."""

    memory_s: float
    arithmetic_s: float

    @property
    def least_s(self) -> float:
        """Seconds that the phase takes at the limit."""
        return max(self.memory_s, self.arithmetic_s)

    @property
    def bound(self) -> Bound:
        """Which limit comes first."""
        return "memory" if self.memory_s >= self.arithmetic_s else "arithmetic"

    def compute_pct(self, measured_s: float) -> float:
        """How much of the limit was reached in `measured_s` seconds, in percent."""
        return 100.0 * self.least_s / measured_s


def compute_roofline(cost: StepCost, limits: ThreadLimits) -> Roofline:
    """Limits of a phase that needs `cost`. Int8 and float32 share the same units, so their times add up."""
    return Roofline(
        memory_s=cost.num_bytes / limits.read_bytes_per_s.best,
        arithmetic_s=cost.num_int8_ops / limits.int8_ops_per_s.best + cost.num_f32_ops / limits.f32_ops_per_s.best,
    )
