"""What would help most: each change planned as if it were made, and its effect told in numbers.

Start at `find_changes`. To add a change, write a function that returns one (or None where it does not apply) and add it
to `_CHANGES`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pelton.core.errors import InvalidParameterError
from pelton.insight.kv_layout import MIXED, KvFormat
from pelton.insight.model_shape import GroupedAttention
from pelton.insight.plan import Plan, PlanOptions, make_plan
from pelton.insight.prediction import Planned, predict_decode, predict_prefill
from pelton.insight.weight_formats import ModelFormats

MAX_CHANGES = 3
ChangeKind = Literal["weights", "kv_cache", "groups", "context", "prefix", "batch"]
# Less than this is not worth a line.
_MIN_GAIN = 1.05
# Query heads per key/value head in Llama 2 70B and Llama 3 70B.
_GROUP = 8


@dataclass(frozen=True, slots=True)
class Change:
    """A change and the plan with it; `ttft_s`, `itl_s`, `tokens_per_s` and `num_fitting` are the predicted values.

    `gain` is how many times better the value gets that gains most, `effect` says it in words.
    """

    name: str
    kind: ChangeKind
    effect: str
    gain: float
    ttft_s: float
    itl_s: float
    tokens_per_s: float
    num_fitting: int | None


def find_changes(plan: Plan) -> list[Change]:
    """The two or three changes that help most, best first."""
    changes = [change for make in _CHANGES if (change := make(plan)) is not None and change.gain >= _MIN_GAIN]
    return sorted(changes, key=lambda change: -change.gain)[:MAX_CHANGES]


def _replan(plan: Plan, planned: Planned, context: int) -> Plan:
    options = PlanOptions(context=context, users=plan.users, prompt=min(plan.prompt, context))
    return make_plan(planned, plan.machine, options, plan.memory.available_bytes)


def _compare(plan: Plan, new: Plan, kind: ChangeKind, name: str) -> Change:
    """Judge by what gains most; where the requests do not fit, by how many do."""
    before, after = plan.speed, new.speed
    gains = {"ITL": before.itl_s / after.itl_s, "TTFT": before.ttft_s / after.ttft_s}
    fit, fit_after = plan.memory.num_fitting, new.memory.num_fitting
    if fit is not None and fit_after is not None and fit < plan.users:
        gains["fit"] = 100.0 if fit == 0 and fit_after > 0 else fit_after / max(fit, 1)
    best = max(gains, key=lambda key: gains[key])
    texts = {
        "ITL": f"ITL {_ms(before.itl_s)} -> {_ms(after.itl_s)} at {_count(plan.users)}",
        "TTFT": f"TTFT {_ms(before.ttft_s)} -> {_ms(after.ttft_s)} at {_count(plan.users)}",
        "fit": f"requests that fit {fit} -> {fit_after}",
    }
    parts = [texts[key] for key in sorted(gains, key=lambda key: -gains[key]) if gains[key] >= _MIN_GAIN]
    return Change(
        name=name,
        kind=kind,
        effect="; ".join(parts) or texts[best],
        gain=gains[best],
        ttft_s=after.ttft_s,
        itl_s=after.itl_s,
        tokens_per_s=after.tokens_per_s,
        num_fitting=fit_after,
    )


def _quantise_weights(plan: Plan) -> Change | None:
    """Weights in 4 bits, where they have more than 6 in the mean."""
    num_parameters = plan.planned.shape.count_parameters()
    if plan.memory.weight_bytes * 8 <= 6 * num_parameters:
        return None
    name = "int4" if plan.planned.formats.default.block_type is None else "q4_0"
    formats = ModelFormats.make_uniform(name)
    try:
        new = _replan(plan, dataclasses.replace(plan.planned, formats=formats), plan.context)
    except (InvalidParameterError, KeyError):
        return None  # rows that are not made of whole blocks, or a format that was not measured
    return _compare(plan, new, "weights", f"quantise weights to {name} (from {plan.planned.formats.describe()})")


def _quantise_kv(plan: Plan) -> Change | None:
    """K and V in int8, where they have 16 bits or more."""
    if plan.planned.kv.name in ("int8", "int4", MIXED):
        return None
    planned = dataclasses.replace(plan.planned, kv=KvFormat("int8"))
    new = _replan(plan, planned, plan.context)
    return _compare(plan, new, "kv_cache", f"KV cache in int8 (from {plan.planned.kv.name})")


def _use_groups(plan: Plan) -> Change | None:
    """A model of this size with grouped-query attention, where every head has its own K and V."""
    shape = plan.planned.shape
    attention = shape.layers[0].attention
    if not isinstance(attention, GroupedAttention) or attention.num_heads // attention.num_kv_heads > 1:
        return None
    num_kv_heads = max(attention.num_heads // _GROUP, 1)
    if attention.num_heads % num_kv_heads:
        return None
    layers = tuple(
        dataclasses.replace(layer, attention=dataclasses.replace(attention, num_kv_heads=num_kv_heads))
        for layer in shape.layers
    )
    planned = dataclasses.replace(plan.planned, shape=dataclasses.replace(shape, layers=layers))
    try:
        new = _replan(plan, planned, plan.context)
    except KeyError:
        return None  # attention of that many heads per K and V was not measured
    return _compare(plan, new, "groups", f"a model of this size with grouped-query attention ({num_kv_heads} KV heads)")


def _shorten_context(plan: Plan) -> Change | None:
    """Half the context."""
    if plan.context < 2 * max(plan.prompt, 256):
        return None
    half = plan.context // 2
    return _compare(plan, _replan(plan, plan.planned, half), "context", f"half the context ({half:,} tokens)")


def _cache_prefix(plan: Plan) -> Change | None:
    """Nine tenths of each prompt found in the prefix cache."""
    num_cached = plan.prompt * 9 // 10
    if num_cached < 16:
        return None
    prefill = predict_prefill(plan.planned, plan.machine, plan.users, plan.prompt - num_cached, num_cached)
    before = plan.speed.ttft_s
    return Change(
        name=f"prefix cache: prompts that share their first {num_cached:,} tokens",
        kind="prefix",
        effect=f"TTFT {_ms(before)} -> {_ms(prefill.total_s)} at {_count(plan.users)}",
        gain=before / prefill.total_s,
        ttft_s=prefill.total_s,
        itl_s=plan.speed.itl_s,
        tokens_per_s=plan.speed.tokens_per_s,
        num_fitting=plan.memory.num_fitting,
    )


def _batch_more(plan: Plan) -> Change | None:
    """Four times the requests in one step, if they fit."""
    users = 4 * plan.users
    if plan.memory.num_fitting is not None and plan.memory.num_fitting < users:
        return None
    decode = predict_decode(plan.planned, plan.machine, users, plan.context)
    rate, before = users / decode.total_s, plan.speed.tokens_per_s
    return Change(
        name=f"more batching: {_count(users)} at once",
        kind="batch",
        effect=f"{before:,.0f} -> {rate:,.0f} tokens/s in all, while ITL goes {_ms(plan.speed.itl_s)} -> "
        f"{_ms(decode.total_s)}",
        # Others pay for it with their ITL, so it counts half.
        gain=math.sqrt(rate / before),
        ttft_s=plan.speed.ttft_s,
        itl_s=decode.total_s,
        tokens_per_s=rate,
        num_fitting=plan.memory.num_fitting,
    )


def _ms(seconds: float) -> str:
    return f"{seconds:,.1f} s" if seconds >= 10 else f"{seconds * 1e3:,.4g} ms"


def _count(users: int) -> str:
    return f"{users:,} user{'s' * (users != 1)}"


_CHANGES: tuple[Callable[[Plan], Change | None], ...] = (
    _quantise_weights,
    _quantise_kv,
    _use_groups,
    _shorten_context,
    _cache_prefix,
    _batch_more,
)
