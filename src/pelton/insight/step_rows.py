"""Steps as JSON with what they cost: bytes, operations, and how near the machine's limits they came.

Costs are those of the cost model. Start at `make_step_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pelton.core.trace import RequestTrace, StepTrace
from pelton.insight.attention_cost import Work
from pelton.insight.explain_costs import StepCounter
from pelton.insight.explain_history import count_sampled
from pelton.insight.machine_limits import ThreadLimits
from pelton.insight.request_story import Json, to_ms
from pelton.insight.roofline import compute_roofline

_COST_NAMES = ("bound", "pct_of_limit", "bytes", "int8_ops", "f32_ops", "gb_per_s", "gop_per_s")


def make_step_rows(
    steps: Sequence[StepTrace],
    traces: Mapping[int, RequestTrace],
    counter: StepCounter | None,
    limits: ThreadLimits | None,
) -> list[Json]:
    """A row per step; `traces` are the requests by sequence number, as far as they are known.

    Without `counter` (the model's file has gone) costs are None, without `limits` what compares with them.
    """
    return [_make_row(step) | _count_cost(step, traces, counter, limits) for step in steps]


def _make_row(step: StepTrace) -> Json:
    return {
        "number": step.number,
        "start": to_ms(step.start_s),
        "plan": to_ms(step.plan_s),
        "model": to_ms(step.model_s),
        "sample": to_ms(step.sample_s),
        "text": to_ms(step.text_s),
        "end": to_ms(step.end_s),
        "decodes": step.num_decodes,
        "prompt_tokens": step.num_prompt_tokens,
        "alone": None if step.decode_alone_s is None else to_ms(step.decode_alone_s),
        "waiting": step.num_waiting,
        "held_up_by": None if step.held_up_by is None else step.held_up_by.value,
        "used_blocks": step.num_used_blocks,
        "shares": [list(share) for share in step.shares],
    }


def _count_cost(
    step: StepTrace, traces: Mapping[int, RequestTrace], counter: StepCounter | None, limits: ThreadLimits | None
) -> Json:
    row: Json = dict.fromkeys(_COST_NAMES)
    if counter is None:
        return row
    works = [Work(share.start, share.num_tokens) for share in step.shares]
    cost = counter.count(works, count_sampled(step, traces))
    row |= {"bytes": round(cost.num_bytes), "int8_ops": round(cost.num_int8_ops), "f32_ops": round(cost.num_f32_ops)}
    if step.model_s > 0:
        row["gb_per_s"] = round(cost.num_bytes / step.model_s / 1e9, 3)
        row["gop_per_s"] = round((cost.num_int8_ops + cost.num_f32_ops) / step.model_s / 1e9, 3)
    if limits is not None:
        roofline = compute_roofline(cost, limits)
        row["bound"] = roofline.bound
        if step.model_s > 0:
            row["pct_of_limit"] = round(roofline.compute_pct(step.model_s), 2)
    return row
