"""Advice: which knob to turn for each verdict, and what it is predicted to do. Start at `advise`.

To add one, write a function that returns an `Advice` (None where it does not apply) and put it into `KNOBS`.
What predictions (`prediction.py`, `plan_changes.py`) say is by which factor a time changes; it is applied to the time
that was measured, so that advice goes on from what happened. Where the machine is not known there are none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from pelton.core.errors import PeltonError
from pelton.insight.explain_facts import RequestFacts
from pelton.insight.explain_types import Advice
from pelton.insight.explain_units import format_bytes, format_count, format_time
from pelton.insight.plan import PlanOptions, SpeedPlan, make_plan
from pelton.insight.plan_changes import Change, find_changes
from pelton.insight.prediction import predict_decode, predict_prefill

MAX_ADVICE = 6
# Less of a gain than this is not worth a line.
_WORTH_TELLING = 0.95
# What stays new of a prompt whose beginning no longer changes, and what a step with prompts should take beside one
# without: the sixth part, and half as long again.
_NEW_SHARE = 1 / 6
_STEP_FACTOR = 1.5
# A cache that must no longer push anybody out has room for this much more.
_MEMORY_FACTOR = 1.5

Knob = Callable[[RequestFacts], Advice | None]


def advise(facts: RequestFacts, verdicts: Sequence[str]) -> list[Advice]:
    """What would help a request with these verdicts, the main one first."""
    found: list[Advice] = []
    for name in verdicts:
        found += [advice for knob in KNOBS.get(name, ()) if (advice := knob(facts)) is not None]
    if any(name in _ASK_PLAN for name in verdicts):
        found += _ask_plan(facts, wants_start=verdicts[0] != "slow_to_stream")
    return list(_drop_repeated(found))[:MAX_ADVICE]


def _drop_repeated(found: Iterable[Advice]) -> Iterable[Advice]:
    """The first of each change."""
    first: dict[str, Advice] = {}
    for advice in found:
        first.setdefault(advice.change, advice)
    return first.values()


def _ask_plan(facts: RequestFacts, *, wants_start: bool) -> list[Advice]:
    """The changes that `pelton plan` would name for requests like this one.

    Without `wants_start` those that only bring the first token sooner are left out.
    """
    planned, rates = facts.setup.planned, facts.setup.rates
    if planned is None or rates is None:
        return []
    trace = facts.trace
    context = min(trace.num_prompt_tokens + trace.num_output_tokens, planned.shape.max_context)
    prompt = min(trace.num_prompt_tokens, context)
    try:
        options = PlanOptions(context=context, users=max(round(facts.mean_batch), 1), prompt=prompt)
        plan = make_plan(planned, rates, options, None)
        changes = find_changes(plan)
    except (PeltonError, KeyError):  # a shape that cannot be planned, a rate that was not measured
        return []
    found = (_describe_change(facts, plan.speed, change, wants_start=wants_start) for change in changes)
    return [advice for advice in found if advice is not None]


def _describe_change(facts: RequestFacts, speed: SpeedPlan, change: Change, *, wants_start: bool) -> Advice | None:
    """A change of the plan, told for this request; None if it gains nothing that was asked for."""
    parts: list[str] = []
    predicted: dict[str, float] = {}
    gaps_s = facts.times.gaps_s
    itl_s = sum(gaps_s) / len(gaps_s) if gaps_s else 0.0
    more = change.tokens_per_s / speed.tokens_per_s
    if wants_start and change.ttft_s < _WORTH_TELLING * speed.ttft_s:
        effect, numbers = _compare("prefill", facts.own_prefill_s, facts.own_prefill_s * change.ttft_s / speed.ttft_s)
        parts.append(effect)
        predicted |= numbers
    if itl_s > 0 and change.itl_s < _WORTH_TELLING * speed.itl_s:
        effect, numbers = _compare("ITL", itl_s, itl_s * change.itl_s / speed.itl_s)
        parts.append(effect)
        predicted |= numbers
    elif itl_s > 0 and more * _WORTH_TELLING > 1.0:
        # More requests at once: each waits a little longer, all together get more.
        rate = facts.mean_batch / itl_s
        effect, numbers = _compare("ITL", itl_s, itl_s * change.itl_s / speed.itl_s)
        parts.append(f"{rate:,.0f} -> {rate * more:,.0f} tokens/s in all, while {effect}")
        predicted |= numbers | {"tokens_per_s": rate * more, "tokens_per_s_now": rate}
    return Advice(change.name, "; ".join(parts), "", predicted) if parts else None


def _predict_ttft(facts: RequestFacts, num_new: int, depth: int) -> float | None:
    planned, rates = facts.setup.planned, facts.setup.rates
    if planned is None or rates is None or num_new < 1:
        return None
    return predict_prefill(planned, rates, 1, num_new, depth, facts.setup.config.prefill_chunk).total_s


def _predict_itl(facts: RequestFacts, num_requests: int) -> float | None:
    planned, rates = facts.setup.planned, facts.setup.rates
    if planned is None or rates is None:
        return None
    return predict_decode(planned, rates, num_requests, _get_context(facts)).total_s


def _get_context(facts: RequestFacts) -> int:
    return max(facts.trace.num_prompt_tokens + facts.trace.num_output_tokens, 1)


def _compare(name: str, before_s: float, after_s: float) -> tuple[str, dict[str, float]]:
    key = name.lower().replace(" ", "_")
    text = f"{name} {format_time(before_s)} -> {format_time(after_s)}"
    return text, {f"{key}_ms": after_s * 1e3, f"{key}_now_ms": before_s * 1e3}


def _shorten_prompt(facts: RequestFacts) -> Advice | None:
    """Half of what had to be computed."""
    half = facts.num_uncached // 2
    before = _predict_ttft(facts, facts.num_uncached, facts.trace.num_cached_tokens)
    after = _predict_ttft(facts, half, facts.trace.num_cached_tokens)
    if before is None or after is None:
        return None
    measured_s = facts.own_prefill_s
    effect, predicted = _compare("prefill", measured_s, measured_s * after / before)
    return Advice(f"a shorter prompt ({format_count(half, 'token')} less)", effect, "", predicted)


def _fix_prefix(facts: RequestFacts) -> Advice | None:
    """What changes goes to the end of the prompt."""
    num_new = max(round(facts.num_uncached * _NEW_SHARE), 1)
    depth = facts.trace.num_prompt_tokens - num_new
    before = _predict_ttft(facts, facts.num_uncached, facts.trace.num_cached_tokens)
    after = _predict_ttft(facts, num_new, depth)
    effect, predicted = f"{format_count(depth, 'token')} could be reused", None
    if before is not None and after is not None:
        measured_s = facts.own_prefill_s
        effect, predicted = _compare("prefill", measured_s, measured_s * after / before)
    return Advice(
        "put what changes at the end of the prompt",
        effect,
        f"Predicted for {format_count(num_new, 'token')} that are new each time. What is reused is the beginning that "
        "prompts have in common, to the token.",
        predicted,
    )


def _use_prefix_cache(facts: RequestFacts) -> Advice | None:
    """Switch the prefix cache on."""
    if facts.setup.config.use_prefix_cache:
        return None
    return Advice("leave out --no-prefix-cache", "prompts that begin alike are computed once", "")


def _use_more_threads(facts: RequestFacts) -> Advice | None:
    """A thread for each CPU there is; arithmetic grows with them at best."""
    num_threads, num_cpus = facts.setup.num_threads, facts.setup.num_cpus
    if num_cpus is None or num_threads >= num_cpus or facts.times.prefill_s is None:
        return None
    after = facts.own_prefill_s * num_threads / num_cpus
    effect, predicted = _compare("prefill", facts.own_prefill_s, after)
    text = "At best: two hardware threads of one core share its arithmetic; `pelton bench machine` measures it."
    return Advice(f"--threads {num_cpus} (now {num_threads})", effect, text, predicted)


def _use_fewer_threads(facts: RequestFacts) -> Advice | None:
    """No more threads than CPUs."""
    num_cpus = facts.setup.num_cpus if facts.load is None else facts.load.num_cpus
    if num_cpus is None:
        return None
    num_threads = facts.setup.num_threads
    wanted = num_cpus if num_threads > num_cpus else max(num_threads - 1, 1)
    if wanted == num_threads:
        return None
    total_s = facts.times.total_s
    after = total_s - facts.own_threads_share * (facts.times.own_prefill_s + facts.times.own_decode_s)
    effect, predicted = _compare("total", total_s, after)
    return Advice(f"--threads {wanted} (now {num_threads})", effect, "If no thread waited for a CPU.", predicted)


def _stop_neighbour(facts: RequestFacts) -> Advice | None:
    """CPUs of its own."""
    total_s = facts.times.total_s
    after = total_s - facts.neighbours_share * (facts.times.own_prefill_s + facts.times.own_decode_s)
    effect, predicted = _compare("total", total_s, after)
    text = "`top` shows the other programs; taskset or cgroups give them CPUs of their own."
    return Advice("give the engine CPUs of its own", effect, text, predicted)


def _leave_cpus(facts: RequestFacts) -> Advice | None:
    """Fewer threads than CPUs, so that the neighbours have theirs."""
    load, num_threads = facts.load, facts.setup.num_threads
    if load is None:
        return None
    wanted = math.floor(load.num_cpus - load.foreign_cpus)
    if not 1 <= wanted < num_threads:
        return None
    return Advice(f"--threads {wanted} (now {num_threads})", "no thread waits for a CPU that others use", "")


def _share_fairly(facts: RequestFacts) -> Advice | None:
    """The fair policy, under which tenants get equal numbers of tokens."""
    if facts.setup.config.scheduling_policy == "fair":
        return Advice(
            "--tokens-per-minute",
            "bounds what one API key may ask for",
            "The policy is fair already: each tenant gets an equal share of the steps, and there is no more.",
        )
    num_tenants = len({*facts.times.behind_s, facts.trace.tenant})
    before = sum(facts.times.behind_s.values())
    # A newcomer waits for the end of a step whatever the policy is.
    waited = facts.history.find_steps(facts.trace.arrival_s, facts.trace.first_scheduled_s or facts.history.now_s)
    longest_s = max((step.end_s - step.start_s for step in waited), default=0.0)
    after = min(facts.times.own_prefill_s * (num_tenants - 1) + longest_s, before)
    effect, predicted = _compare("waiting for prompts", before, after)
    tenants = format_count(num_tenants, "tenant")
    text = f"{tenants} would take turns: each waits for the end of a step, then for others as long as its prompt takes."
    return Advice("--scheduling-policy fair", effect, text, predicted)


def _send_fewer(facts: RequestFacts) -> Advice | None:
    """Fewer requests at once."""
    return Advice(
        "fewer prompts at the same time, or prompts that begin alike",
        f"{format_time(sum(facts.times.behind_s.values()))} of waiting for them",
        "Prompts are computed one after the other; what they have in common is computed once.",
    )


def _add_memory(facts: RequestFacts) -> Advice | None:
    """A KV cache for those who waited, too."""
    setup = facts.setup
    num_waiting = max((step.num_waiting for step in facts.trace.steps[:1]), default=0) + 1
    needed = num_waiting * (facts.trace.num_prompt_tokens + facts.trace.max_tokens)
    num_tokens = max(setup.num_kv_tokens + needed, math.ceil(_MEMORY_FACTOR * setup.num_kv_tokens))
    num_bytes = num_tokens * setup.kv_bytes_per_token
    return Advice(
        f"--kv-cache-memory {math.ceil(num_bytes / 2**20)}MiB",
        f"room for {format_count(num_tokens, 'token')} (now {setup.num_kv_tokens:,}), {format_bytes(num_bytes)}",
        "",
        {"kv_tokens": float(num_tokens), "kv_tokens_now": float(setup.num_kv_tokens), "kv_bytes": num_bytes},
    )


def _quantise_kv(facts: RequestFacts) -> Advice | None:
    """Half the bytes for each token."""
    if facts.setup.config.kv_cache_dtype not in ("f16", "bf16", "f32"):
        return None
    factor = 4 if facts.setup.config.kv_cache_dtype == "f32" else 2
    num_tokens = factor * facts.setup.num_kv_tokens
    return Advice(
        f"--kv-cache-dtype int8 (now {facts.setup.config.kv_cache_dtype})",
        f"about {format_count(num_tokens, 'token')} in the same memory (now {facts.setup.num_kv_tokens:,})",
        "Keys and values become a little less precise.",
        {"kv_tokens": float(num_tokens), "kv_tokens_now": float(facts.setup.num_kv_tokens)},
    )


def _run_fewer(facts: RequestFacts) -> Advice | None:
    """Fewer requests at once, which then need no preemption."""
    num = max((step.num_sequences for step in facts.trace.steps), default=0)
    if num < 2:
        return None
    return Advice(
        f"--max-num-seqs {num - 1}", "requests wait before they start, and keep their blocks once they run", ""
    )


def _add_seats(facts: RequestFacts) -> Advice | None:
    """A seat for everybody who waited."""
    now = facts.setup.config.max_num_seqs
    waiting = [step.num_waiting for step in facts.history.find_steps(facts.trace.arrival_s, facts.history.now_s)]
    wanted = now + max(waiting, default=1)
    before, after = _predict_itl(facts, now), _predict_itl(facts, wanted)
    if before is None or after is None:
        return Advice(
            f"--max-num-seqs {wanted} (now {now})", "nobody waits for a seat", "All tokens come a little slower."
        )
    gaps_s = facts.times.gaps_s
    if gaps_s:
        before, after = sum(gaps_s) / len(gaps_s), after / before * sum(gaps_s) / len(gaps_s)
    effect, predicted = _compare("ITL", before, after)
    return Advice(f"--max-num-seqs {wanted} (now {now})", f"nobody waits for a seat; {effect}", "", predicted)


def _limit_steps(facts: RequestFacts) -> Advice | None:
    """Steps that are hardly longer with prompts than without."""
    alone = [step.decode_alone_s for step in facts.decode_steps if step.stall_s > 0 and step.decode_alone_s is not None]
    if not alone:
        return None
    limit_ms = max(math.ceil(_STEP_FACTOR * max(alone) * 1e3), 1)
    now = facts.setup.config.max_step_ms
    if now is not None and now <= limit_ms:
        return None
    longest_s = max(facts.times.gaps_s, default=0.0)
    effect, predicted = _compare("longest gap", longest_s, min(limit_ms / 1e3, longest_s))
    text = "Prompts then take more steps, and their first tokens come later."
    return Advice(f"--max-step-ms {limit_ms}", effect, text, predicted)


def _allow_longer_steps(facts: RequestFacts) -> Advice | None:
    """More prompt tokens in a step, at the cost of those who generate."""
    if not facts.prefill_steps:
        return None
    longest_ms = max(step.model_s for step in facts.prefill_steps) * 1e3
    wanted_ms = max(math.ceil(2 * longest_ms), 2)
    own_s, beside_s = facts.times.own_prefill_s, facts.times.beside_decodes_s
    effect, predicted = _compare("prefill", own_s + beside_s, own_s + beside_s / 2)
    return Advice(f"--max-step-ms {wanted_ms}", effect, "The gaps of those who generate grow meanwhile.", predicted)


def _read_whole(facts: RequestFacts) -> Advice | None:
    """Nothing the engine could do."""
    total_s = facts.times.total_s
    effect, predicted = _compare("total", total_s, total_s - facts.times.reader_s)
    text = "Read in a thread or task of its own, or ask without streaming: then the answer is handed over once."
    return Advice("a faster reader, or stream: false", effect, text, predicted)


_START: tuple[Knob, ...] = (_shorten_prompt, _use_prefix_cache, _use_more_threads)
KNOBS: Mapping[str, tuple[Knob, ...]] = {
    "queued_behind_tenant": (_share_fairly,),
    "queued_behind_prompts": (_send_fewer, _use_prefix_cache),
    "queued_for_memory": (_add_memory, _quantise_kv),
    "queued_for_seats": (_add_seats,),
    "queued_for_step": (),
    "slowed_by_decodes": (_allow_longer_steps,),
    "memory_pressure": (_add_memory, _quantise_kv, _run_fewer),
    "stalled_by_prefill": (_limit_steps,),
    "changing_prefix": (_fix_prefix,),
    "cold_long_prompt": _START,
    "too_many_threads": (_use_fewer_threads,),
    "busy_neighbour": (_stop_neighbour, _leave_cpus),
    "slow_reader": (_read_whole,),
    "slow_to_start": _START,
    "slow_to_stream": (_use_more_threads,),
    "balanced": (_use_more_threads,),
}
# Where what the model itself takes is the matter.
_ASK_PLAN = ("cold_long_prompt", "slow_to_start", "slow_to_stream", "balanced")
