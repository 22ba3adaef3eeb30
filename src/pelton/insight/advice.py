"""Advice: which knob to turn for each verdict, and what it is predicted to do. Start at `advise`.

To add one, write a function that returns an `Advice` (None where it does not apply) and put it into `KNOBS`.
Predictions are `prediction.py`'s and `plan_changes.py`'s; where the machine is not known there are none. Of them only
ratios are used, on what was measured (`advice_from_plan.py`), and a change that hardly gains is no advice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from pelton.insight.advice_from_plan import MIN_GAIN, TimeName, advise_from_plan, compare_times, replace_share
from pelton.insight.explain_facts import RequestFacts
from pelton.insight.explain_types import Advice
from pelton.insight.explain_units import format_bytes, format_count, format_time
from pelton.insight.prediction import predict_decode, predict_prefill

MAX_ADVICE = 6
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
    asked = next((_ASK_PLAN[name] for name in verdicts if name in _ASK_PLAN), None)
    if asked is not None:
        found += advise_from_plan(facts, asked)
    return keep_first(found)


def keep_first(found: Iterable[Advice]) -> list[Advice]:
    """The first of each change. An option can only be turned one way, and the main verdict says which."""
    first: dict[str, Advice] = {}
    for advice in found:
        option = advice.change.split()[0]
        first.setdefault(option if option.startswith("--") else advice.change, advice)
    return list(first.values())[:MAX_ADVICE]


def _predict_ttft(facts: RequestFacts, num_new: int) -> float | None:
    """Its TTFT in seconds if only the last `num_new` prompt tokens had to be computed; None if that is not known."""
    planned, rates, measured_s = facts.setup.planned, facts.setup.rates, facts.times.ttft_s
    if planned is None or rates is None or measured_s is None or min(num_new, facts.num_uncached) < 1:
        return None
    num_prompt, chunk = facts.trace.num_prompt_tokens, facts.setup.config.prefill_chunk
    before, after = (
        predict_prefill(planned, rates, 1, num, num_prompt - num, chunk).total_s
        for num in (facts.num_uncached, num_new)
    )
    return replace_share(measured_s, facts.times.own_prefill_s, after / before)


def _predict_itl(facts: RequestFacts, num_requests: int) -> float | None:
    planned, rates = facts.setup.planned, facts.setup.rates
    if planned is None or rates is None:
        return None
    return predict_decode(planned, rates, num_requests, _get_context(facts)).total_s


def _get_context(facts: RequestFacts) -> int:
    return max(facts.trace.num_prompt_tokens + facts.trace.num_output_tokens, 1)


def _promise(change: str, name: str, before_s: float, after_s: float, text: str = "") -> Advice | None:
    """A change that makes a time shorter; None if it hardly does."""
    if before_s < MIN_GAIN * after_s:
        return None
    effect, predicted = compare_times(name, before_s, after_s)
    return Advice(change, effect, text, predicted)


def _shorten_prompt(facts: RequestFacts) -> Advice | None:
    """Half of what had to be computed."""
    half = facts.num_uncached // 2
    before, after = facts.times.ttft_s, _predict_ttft(facts, facts.num_uncached - half)
    if before is None or after is None:
        return None
    return _promise(f"a shorter prompt ({format_count(half, 'token')} less)", "TTFT", before, after)


def _fix_prefix(facts: RequestFacts) -> Advice | None:
    """What changes goes to the end of the prompt."""
    num_new = max(round(facts.num_uncached * _NEW_SHARE), 1)
    change = "put what changes at the end of the prompt"
    text = (
        f"Predicted for {format_count(num_new, 'token')} that are new each time. What is reused is the beginning that "
        "prompts have in common, to the token."
    )
    before, after = facts.times.ttft_s, _predict_ttft(facts, num_new)
    if before is not None and after is not None:
        return _promise(change, "TTFT", before, after, text)
    num_reused = facts.trace.num_prompt_tokens - num_new
    return Advice(change, f"{format_count(num_reused, 'token')} could be reused", text)


def _use_prefix_cache(facts: RequestFacts) -> Advice | None:
    """Switch the prefix cache on."""
    if facts.setup.config.use_prefix_cache:
        return None
    return Advice("leave out --no-prefix-cache", "prompts that begin alike are computed once", "")


def _use_kv_cache(facts: RequestFacts) -> Advice | None:
    """Switch the KV cache on."""
    if facts.setup.config.use_kv_cache:
        return None
    return Advice("leave out --no-kv-cache", "each step computes one token in place of the whole sequence", "")


def _use_more_threads(facts: RequestFacts) -> Advice | None:
    """A thread for each CPU there is; arithmetic grows with them at best."""
    num_threads, num_cpus, before = facts.setup.num_threads, facts.setup.num_cpus, facts.times.prefill_s
    if num_cpus is None or num_threads >= num_cpus or before is None:
        return None
    after = replace_share(before, facts.own_prefill_s, num_threads / num_cpus)
    text = "At best: two hardware threads of one core share its arithmetic; `pelton bench machine` measures it."
    return _promise(f"--threads {num_cpus} (now {num_threads})", "prefill", before, after, text)


def _use_fewer_threads(facts: RequestFacts) -> Advice | None:
    """No more threads than CPUs."""
    num_cpus = facts.setup.num_cpus if facts.load is None else facts.load.num_cpus
    if num_cpus is None:
        return None
    num_threads = facts.setup.num_threads
    wanted = num_cpus if num_threads > num_cpus else max(num_threads - 1, 1)
    if wanted == num_threads:
        return None
    # No number: threads that wait for each other's CPUs also work in turns, and what is lost is not measured. 8 threads
    # on 2 CPUs took 829 ms, and 2 took 689 ms, where waiting filled three quarters (SmolLM2-135M, 2026-11-30).
    text = "How much it gains only a run can tell: threads in excess take turns, and lose a part of what they wait."
    return Advice(f"--threads {wanted} (now {num_threads})", "each thread has a CPU of its own", text)


def _stop_neighbour(facts: RequestFacts) -> Advice | None:
    """CPUs of its own."""
    total_s = facts.times.total_s
    after = total_s - facts.neighbours_share * facts.times.computing_s
    text = "`top` shows the other programs; taskset or cgroups give them CPUs of their own."
    return _promise("give the engine CPUs of its own", "total", total_s, after, text)


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
    tenants = format_count(num_tenants, "tenant")
    text = f"{tenants} would take turns: each waits for the end of a step, then for others as long as its prompt takes."
    return _promise("--scheduling-policy fair", "waiting for prompts", before, after, text)


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
    if facts.times.itl_s is not None:
        before, after = facts.times.itl_s, facts.times.itl_s * after / before
    effect, predicted = compare_times("ITL", before, after)
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
    # Steps without prompts stay as long as they were.
    others_s = max((step.end_s - step.start_s for step in facts.decode_steps if step.stall_s <= 0), default=0.0)
    text = "Prompts then take more steps, and their first tokens come later."
    longest_s = max(facts.times.gaps_s, default=0.0)
    return _promise(f"--max-step-ms {limit_ms}", "longest gap", longest_s, max(limit_ms / 1e3, others_s), text)


def _allow_longer_steps(facts: RequestFacts) -> Advice | None:
    """More prompt tokens in a step, at the cost of those who generate."""
    if not facts.prefill_steps:
        return None
    longest_ms = max(step.model_s for step in facts.prefill_steps) * 1e3
    wanted_ms = max(math.ceil(2 * longest_ms), 2)
    own_s, beside_s = facts.times.own_prefill_s, facts.times.beside_decodes_s
    text = "The gaps of those who generate grow meanwhile."
    return _promise(f"--max-step-ms {wanted_ms}", "prefill", own_s + beside_s, own_s + beside_s / 2, text)


def _read_whole(facts: RequestFacts) -> Advice | None:
    """Nothing the engine could do."""
    total_s = facts.times.total_s
    text = "Read in a thread or task of its own, or ask without streaming: then the answer is handed over once."
    return _promise("a faster reader, or stream: false", "total", total_s, total_s - facts.times.reader_s, text)


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
    "slow_to_stream": (
        _use_kv_cache,
        _use_more_threads,
    ),
    "balanced": (
        _use_kv_cache,
        _use_more_threads,
    ),
}
# Where what the model itself takes is the matter: which of its times is to become shorter.
_ASK_PLAN: Mapping[str, tuple[TimeName, ...]] = {
    "cold_long_prompt": ("TTFT",),
    "slow_to_start": ("TTFT",),
    "slow_to_stream": ("ITL",),
    "balanced": ("TTFT", "ITL"),
}
