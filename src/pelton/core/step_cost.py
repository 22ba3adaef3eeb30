"""`StepCost`: what steps need at least from the machine, and how their time was shared. Plain data and sums.

The numbers come from the native program's nodes (`get_node_times` of a runner), which count while they run, or from
`insight/cost_model.py`, which says the same beforehand; a test holds the two together. Start at
`StepCost.from_node_times`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# Kind, seconds, bytes, operations of one node in one step.
NodeTime = tuple[str, float, float, float]


@dataclass(frozen=True, slots=True)
class StepCost:
    """Bytes that must come from memory (weights once per step, K and V) and operations (a multiply-add is two)."""

    num_bytes: float = 0.0
    num_int8_ops: float = 0.0
    num_f32_ops: float = 0.0

    @classmethod
    def from_node_times(cls, nodes: Iterable[NodeTime]) -> StepCost:
        """Sum over nodes. Linears over affine weights multiply in int8, everything else in float32."""
        num_bytes = num_int8_ops = num_f32_ops = 0.0
        for kind, _, node_bytes, ops in nodes:
            num_bytes += node_bytes
            if _is_int8(kind):
                num_int8_ops += ops
            else:
                num_f32_ops += ops
        return cls(num_bytes, num_int8_ops, num_f32_ops)

    @property
    def num_ops(self) -> float:
        """Operations of every type."""
        return self.num_int8_ops + self.num_f32_ops

    def __add__(self, other: StepCost) -> StepCost:
        return StepCost(
            self.num_bytes + other.num_bytes,
            self.num_int8_ops + other.num_int8_ops,
            self.num_f32_ops + other.num_f32_ops,
        )

    def __mul__(self, factor: float) -> StepCost:
        return StepCost(self.num_bytes * factor, self.num_int8_ops * factor, self.num_f32_ops * factor)


def share_time(nodes: Iterable[NodeTime]) -> dict[str, float]:
    """Seconds spent in linear, attend and all other nodes."""
    seconds = {"linear": 0.0, "attend": 0.0, "other": 0.0}
    for kind, node_s, _, _ in nodes:
        seconds["linear" if kind.startswith("linear") else "attend" if kind == "attend" else "other"] += node_s
    return seconds


def _is_int8(kind: str) -> bool:
    return kind.startswith("linear") and not kind.endswith("_float")
