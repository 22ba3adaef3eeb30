"""`StepCounter`: the cost model applied to many recorded steps, fast; `PhaseCost`: a phase beside the machine's limits.

What repeats from step to step is counted once: linears by their number of rows, attention by kind of layer. A test
compares every sum with `cost_model.list_ops`. Start at `StepCounter.count`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pelton.core.step_cost import StepCost
from pelton.insight.attention_cost import Work, count_attention
from pelton.insight.cost_model import list_ops, sum_cost
from pelton.insight.machine_limits import ThreadLimits
from pelton.insight.prediction import Planned
from pelton.insight.roofline import Roofline, compute_roofline


class StepCounter:
    """Counts steps of one model."""

    def __init__(self, planned: Planned) -> None:
        self._planned = planned
        self._attentions = Counter(layer.attention for layer in planned.shape.layers)
        self._linears: dict[tuple[int, int], StepCost] = {}

    def count(self, sequences: Sequence[Work], num_sampled: int) -> StepCost:
        """Cost of a step in which `sequences` compute, and `num_sampled` of them get logits."""
        num_rows = sum(work.num_tokens for work in sequences)
        return self._count_linears(num_rows, num_sampled) + self._count_attention(sequences)

    def _count_linears(self, num_rows: int, num_sampled: int) -> StepCost:
        key = (num_rows, num_sampled)
        cost = self._linears.get(key)
        if cost is None:
            shape, formats, kv = self._planned.shape, self._planned.formats, self._planned.kv
            ops = list_ops(shape, formats, kv, [Work(0, num_rows)], num_sampled)
            cost = self._linears[key] = sum_cost((op, 1) for op in ops if op.kind == "linear")
        return cost

    def _count_attention(self, sequences: Sequence[Work]) -> StepCost:
        num_bytes = num_ops = num_int8_ops = 0.0
        for attention, count in self._attentions.items():
            for _, number_type, each_bytes, each_ops in count_attention(attention, self._planned.kv, sequences):
                num_bytes += count * each_bytes
                if number_type == "int8":
                    num_int8_ops += count * each_ops
                else:
                    num_ops += count * each_ops
        return StepCost(num_bytes, num_int8_ops, num_ops)


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """What `num_steps` steps needed, and the seconds the model took for them; `roofline` where limits are known."""

    cost: StepCost
    model_s: float
    num_steps: int
    roofline: Roofline | None

    @property
    def ops_per_s(self) -> float:
        """Operations per second of the model's time."""
        return self.cost.num_ops / self.model_s if self.model_s > 0 else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Bytes per second of the model's time."""
        return self.cost.num_bytes / self.model_s if self.model_s > 0 else 0.0

    @property
    def pct_of_limit(self) -> float | None:
        """How much of the limit that rules was reached, in percent."""
        if self.roofline is None or self.model_s <= 0:
            return None
        return self.roofline.compute_pct(self.model_s)


def make_phase(cost: StepCost, model_s: float, num_steps: int, limits: ThreadLimits | None) -> PhaseCost:
    """A phase beside `limits`."""
    return PhaseCost(cost, model_s, num_steps, None if limits is None else compute_roofline(cost, limits))
