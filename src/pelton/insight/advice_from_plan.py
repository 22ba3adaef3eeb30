"""What `pelton plan` would change for requests like one that was measured, told in what was measured.

A plan is a prediction, and a request ran as it ran: of the plan only ratios are taken. Start at `advise_from_plan`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pelton.core.errors import PeltonError
from pelton.insight.explain_facts import RequestFacts
from pelton.insight.explain_types import Advice
from pelton.insight.explain_units import format_time
from pelton.insight.plan import Plan, PlanOptions, make_plan
from pelton.insight.plan_changes import Change, find_changes

TimeName = Literal["TTFT", "ITL"]
# Less is no gain: predictions are not better than that.
MIN_GAIN = 1.05
# A prompt of which this much was reused does without the advice to reuse it.
_REUSED_SHARE = 0.1


def advise_from_plan(facts: RequestFacts, wanted: Sequence[TimeName]) -> list[Advice]:
    """Changes that make one of the `wanted` times shorter; where streaming is wanted, batching for all together."""
    plan = _make_plan(facts)
    if plan is None:
        return []
    found = []
    for change in find_changes(plan):
        if change.kind == "prefix" and facts.trace.num_cached_tokens > _REUSED_SHARE * facts.trace.num_prompt_tokens:
            continue
        advice = _batch_more(facts, plan, change, wanted) if change.kind == "batch" else None
        advice = _shorten_times(facts, plan, change, wanted) if change.kind != "batch" else advice
        if advice is not None:
            found.append(advice)
    return found


def replace_share(measured_s: float, own_s: float, ratio: float) -> float:
    """A measured time if the part of it that is the request's own (`own_s`) took `ratio` times as long."""
    return measured_s - min(own_s, measured_s) * (1.0 - ratio)


def compare_times(name: str, before_s: float, after_s: float) -> tuple[str, dict[str, float]]:
    """A time as it is and as it would be: in words, and in milliseconds by keys made of its name."""
    key = name.lower().replace(" ", "_")
    text = f"{name} {format_time(before_s)} -> {format_time(after_s)}"
    return text, {f"{key}_ms": after_s * 1e3, f"{key}_now_ms": before_s * 1e3}


def _make_plan(facts: RequestFacts) -> Plan | None:
    """The plan for as many requests like this one as ran together; None if these cannot be planned."""
    planned, rates = facts.setup.planned, facts.setup.rates
    if planned is None or rates is None or not facts.setup.config.use_kv_cache:
        return None
    trace = facts.trace
    context = min(trace.num_prompt_tokens + trace.num_output_tokens, planned.shape.max_context)
    prompt = min(trace.num_prompt_tokens, context)
    try:
        return make_plan(planned, rates, PlanOptions(context=context, users=_count_users(facts), prompt=prompt), None)
    except (PeltonError, KeyError):  # a shape that cannot be planned, a rate that was not measured
        return None


def _count_users(facts: RequestFacts) -> int:
    return max(round(facts.mean_batch), 1)


def _change_times(facts: RequestFacts, plan: Plan, change: Change) -> dict[TimeName, tuple[float, float]]:
    """The measured times, and what they would be with the change; those that there are."""
    times, speed = facts.times, plan.speed
    found: dict[TimeName, tuple[float, float]] = {}
    if times.ttft_s is not None:
        found["TTFT"] = (times.ttft_s, replace_share(times.ttft_s, times.own_prefill_s, change.ttft_s / speed.ttft_s))
    itl_s = times.itl_s
    if itl_s is not None and times.decode_s:
        own_s = itl_s * times.own_decode_s / times.decode_s
        found["ITL"] = (itl_s, replace_share(itl_s, own_s, change.itl_s / speed.itl_s))
    return found


def _shorten_times(facts: RequestFacts, plan: Plan, change: Change, wanted: Sequence[TimeName]) -> Advice | None:
    times = _change_times(facts, plan, change)
    shorter = [name for name, (before_s, after_s) in times.items() if before_s >= MIN_GAIN * after_s]
    if not any(name in wanted for name in shorter):
        return None
    effects: list[str] = []
    predicted: dict[str, float] = {}
    for name in sorted(shorter, key=lambda name: name not in wanted):
        effect, numbers = compare_times(name, *times[name])
        effects.append(effect)
        predicted |= numbers
    return Advice(change.name, "; ".join(effects), "", predicted)


def _batch_more(facts: RequestFacts, plan: Plan, change: Change, wanted: Sequence[TimeName]) -> Advice | None:
    """More tokens per second for all together, at the cost of each."""
    times = _change_times(facts, plan, change)
    if tuple(wanted) != ("ITL",) or "ITL" not in times:
        return None
    before_s, after_s = times["ITL"]
    factor = change.tokens_per_s * change.itl_s / (plan.speed.tokens_per_s * plan.speed.itl_s)
    before, after = facts.mean_batch / before_s, facts.mean_batch * factor / after_s
    if after < MIN_GAIN * before:
        return None
    _, predicted = compare_times("ITL", before_s, after_s)
    return Advice(
        change.name,
        f"{before:,.0f} -> {after:,.0f} tokens/s in all, while ITL goes {format_time(before_s)} -> "
        f"{format_time(after_s)}",
        "For all together: what is read from memory serves each of them. This one alone would not be faster.",
        {"tokens_per_s": after, "tokens_per_s_now": before, **predicted},
    )
