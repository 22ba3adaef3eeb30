"""How long steps take: TTFT and ITL of a model on a machine, and which bound rules. Arithmetic over the cost model.

Knows costs and rates, not where a model or a machine comes from. Start at `predict_decode` and `predict_prefill`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pelton.core.step_cost import StepCost
from pelton.insight.attention_cost import Work
from pelton.insight.cost_model import OpCost, list_distinct_ops, sum_cost
from pelton.insight.kv_layout import KvFormat
from pelton.insight.machine_rates import AttendOp, LinearOp, MachineRates
from pelton.insight.model_shape import GroupedAttention, ModelShape
from pelton.insight.roofline import Bound, compute_roofline
from pelton.insight.weight_formats import ModelFormats

# Most prompt tokens of one step (`EngineConfig.prefill_chunk`).
PREFILL_CHUNK = 2048


@dataclass(frozen=True, slots=True)
class Planned:
    """A model as it is to be run: its shape, the formats of weights, and of keys and values."""

    shape: ModelShape
    formats: ModelFormats
    kv: KvFormat


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of one step (decode) or of all steps of the prompts (prefill), by part, and what bounds them.

    `cost` is what is needed at least, `limit_s` the time it takes at the machine's limits.
    """

    linear_s: float
    attend_s: float
    rest_s: float
    overhead_s: float
    bound: Bound
    limit_s: float
    cost: StepCost

    @property
    def total_s(self) -> float:
        """All parts."""
        return self.linear_s + self.attend_s + self.rest_s + self.overhead_s


def predict_decode(planned: Planned, machine: MachineRates, num_requests: int, context: int) -> Prediction:
    """One step in which each of `num_requests` requests gets a token that sees `context` tokens, itself included."""
    work = [Work(context - 1, 1)] * num_requests
    return _predict_steps(planned, machine, work, num_steps=1, is_decode=True)


def predict_prefill(
    planned: Planned, machine: MachineRates, num_requests: int, prompt: int, depth: int, chunk: int = PREFILL_CHUNK
) -> Prediction:
    """All steps until the last of `num_requests` requests that came together has its first token.

    Each computes `prompt` tokens after `depth` that are stored already.
    """
    num_steps = -(-num_requests * prompt // chunk)
    return _predict_steps(planned, machine, [Work(depth, prompt)] * num_requests, num_steps, is_decode=False)


def _predict_steps(
    planned: Planned, machine: MachineRates, work: Sequence[Work], num_steps: int, is_decode: bool
) -> Prediction:
    ops = list_distinct_ops(planned.shape, planned.formats, planned.kv, work)
    linears = [(op, count) for op, count in ops if op.kind == "linear"]
    attends = [(op, count) for op, count in ops if op.kind == "attend"]
    # Weights are read once per step, while the ops above read them once in all.
    cost = sum_cost(ops) + StepCost(num_bytes=sum_cost(linears).num_bytes * (num_steps - 1))
    roofline = compute_roofline(cost, machine.limits)
    step_bytes = cost.num_bytes / num_steps
    num_tokens = sum(each.num_tokens for each in work)
    num_requests = max(len(work) // num_steps, 1)
    return Prediction(
        linear_s=sum(count * _predict_linear(op, machine, num_steps, step_bytes) for op, count in linears),
        attend_s=sum(count * _predict_attend(op, planned, machine, is_decode, step_bytes) for op, count in attends),
        rest_s=machine.predict_rest(num_tokens * _count_rest_elements(planned.shape), num_tokens / num_steps),
        overhead_s=num_steps * machine.predict_overhead(num_requests),
        bound=roofline.bound,
        limit_s=roofline.least_s,
        cost=cost,
    )


def _predict_linear(op: OpCost, machine: MachineRates, num_steps: int, step_bytes: float) -> float:
    """`num_steps` times a step with an equal share of the rows."""
    one_step = LinearOp(op.format_name, op.num_bytes, op.num_ops / num_steps, op.num_rows / num_steps, step_bytes)
    return num_steps * machine.predict_linear(one_step)


def _predict_attend(op: OpCost, planned: Planned, machine: MachineRates, is_decode: bool, step_bytes: float) -> float:
    assert op.layer is not None, "attention belongs to a layer"
    attention = planned.shape.layers[op.layer].attention
    group = attention.num_heads
    if isinstance(attention, GroupedAttention):
        group //= attention.num_kv_heads
    attend = AttendOp(planned.kv.name, group, is_decode, op.num_bytes, op.num_ops, step_bytes)
    return machine.predict_attend(attend)


def _count_rest_elements(shape: ModelShape) -> float:
    """Values per token that are worked on row by row: normed, quantised, rotated, stored, gated."""
    elements = 0.0
    for layer in shape.layers:
        mlp, attention = layer.mlp, layer.attention
        elements += 2 * shape.hidden_size * shape.num_streams
        elements += mlp.size * max(mlp.num_experts_per_token, 1) + mlp.shared_size
        if isinstance(attention, GroupedAttention):
            elements += (2 * attention.num_heads + 3 * attention.num_kv_heads) * attention.head_dim
        else:
            elements += 2 * attention.num_heads * attention.rope_dim
    return elements
