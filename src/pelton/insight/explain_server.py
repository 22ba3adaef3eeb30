"""What a server did lately: its traffic, where its time went, who was slow and why, what the prefix cache missed.

The verdicts are those of the single requests, added up. Start at `explain_server`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence

from pelton.core.cache_miss import CacheMissReason
from pelton.core.trace import RequestTrace, StepTrace
from pelton.insight.advice import advise, keep_first
from pelton.insight.explain_facts import SAME_PLACE_TOKENS, RequestFacts, count_steps
from pelton.insight.explain_history import History
from pelton.insight.explain_load import measure_load
from pelton.insight.explain_setup import Setup
from pelton.insight.explain_types import Advice, Explanation, Fact, Stage, Verdict
from pelton.insight.explain_units import format_count, format_share, format_time, get_quantile
from pelton.insight.verdicts import judge

# A cause must explain this share of all requests' time to be told: a server has several at the same time.
_MIN_SHARE = 0.05
# More would make a page nobody reads, and take the server's time.
_NUM_SLOWEST = 5
_MAX_REQUESTS = 400
_MAX_COUNTED_STEPS = 300
_MISSES = {
    "first_time": "first of their kind",
    "diverged_at": "other text at a place",
    "evicted": "needed for others meanwhile",
    "partial_block": "no room to copy a block",
    "salt": "another salt",
    "off": "reuse switched off",
}

# A request, its verdicts and what it was made of.
Judged = tuple[RequestFacts, list[Verdict]]


def explain_server(history: History, setup: Setup, window_s: float) -> Explanation:
    """Explain the last `window_s` seconds, as far as they were kept."""
    start_s = history.now_s - window_s
    requests = [t for t in history.requests if t.end_s is None or t.end_s >= start_s][-_MAX_REQUESTS:]
    steps = list(history.find_steps(start_s, history.now_s))
    # Costs of single requests are not asked for: there are many, and they share their steps.
    plain = dataclasses.replace(setup, planned=None)
    judged = [(facts, judge(facts)) for facts in (RequestFacts(t, history, plain) for t in requests)]
    verdicts = _add_up(judged)
    stages: list[Stage | None] = [_tell_traffic(requests, window_s)]
    if steps:
        stages.append(_tell_steps(steps, history, setup, window_s))
    if requests:
        stages += [_tell_slowest(judged), _tell_prefix_cache(requests)]
    if steps:
        stages.append(_tell_memory(steps, requests, setup))
        stages.append(_tell_machine(history, setup, start_s))
    return Explanation(
        subject="server",
        request_id=None,
        headline=f"The last {format_time(window_s)}: {format_count(len(requests), 'request')}, "
        f"{format_count(len(steps), 'step')}",
        stages=tuple(stage for stage in stages if stage is not None),
        verdicts=tuple(verdicts),
        advice=tuple(_advise(judged, verdicts, setup)),
    )


def _add_up(judged: Sequence[Judged]) -> list[Verdict]:
    """The verdicts that explain most of all requests' time together, with how many have them and the worst one."""
    total_s = sum(facts.times.total_s for facts, _ in judged)
    cases: defaultdict[str, list[tuple[RequestFacts, Verdict]]] = defaultdict(list)
    for facts, verdicts in judged:
        for verdict in verdicts:
            cases[verdict.name].append((facts, verdict))
    found = []
    for name, each in cases.items():
        seconds = sum(verdict.seconds for _, verdict in each)
        if total_s <= 0 or (seconds < _MIN_SHARE * total_s and name != "balanced"):
            continue
        facts, worst = max(each, key=lambda pair: pair[1].seconds)
        share = f"{format_count(len(each), 'request')} of {len(judged):,}"
        if seconds:
            share += f", {format_share(seconds / total_s)} of all their time"
        evidence = (share, f"the worst, {facts.trace.request_id}: {worst.evidence[0]}", *worst.evidence[1:])
        found.append(Verdict(name, worst.title, worst.text, evidence, seconds))
    found.sort(key=lambda verdict: -verdict.seconds)
    special = [verdict for verdict in found if verdict.name != "balanced"]
    return special or found


def _advise(judged: Sequence[Judged], verdicts: Sequence[Verdict], setup: Setup) -> list[Advice]:
    """The knobs for the worst request of each verdict."""
    found: list[Advice] = []
    for verdict in verdicts:
        cases = [(each.seconds, facts) for facts, own in judged for each in own if each.name == verdict.name]
        worst = max(cases, key=lambda case: case[0])[1]
        full = RequestFacts(worst.trace, worst.history, setup)
        found += advise(full, [verdict.name])
    return keep_first(found)


def _tell_traffic(requests: Sequence[RequestTrace], window_s: float) -> Stage:
    if not requests:
        return Stage(
            name="traffic",
            title="Traffic",
            text=f"No request ran or ended in the last {format_time(window_s)}.",
            facts=(Fact("requests", 0, "requests"),),
        )
    num_live = sum(not trace.is_finished for trace in requests)
    tenants = Counter(trace.tenant for trace in requests)
    num_prompt = sum(trace.num_prompt_tokens for trace in requests)
    num_output = sum(trace.num_output_tokens for trace in requests)
    text = (
        f"{format_count(len(requests), 'request')} of {format_count(len(tenants), 'caller')}, {num_live:,} under way."
    )
    if len(tenants) > 1:
        name, count = tenants.most_common(1)[0]
        text += f" {name} sent most: {count:,}."
    ttfts = [first - t.arrival_s for t in requests if (first := t.first_token_s) is not None]
    gaps = [b - a for t in requests for times in t.token_times_s for a, b in itertools.pairwise(times)]
    found = [
        Fact("prompt tokens", num_prompt, "tokens"),
        Fact("new tokens", num_output, "tokens"),
    ]
    for name, values in (("TTFT", ttfts), ("ITL", gaps)):
        if values:
            found.append(Fact(f"{name} p50", get_quantile(values, 0.5) * 1e3, "ms"))
            found.append(Fact(f"{name} p99", get_quantile(values, 0.99) * 1e3, "ms"))
    return Stage(name="traffic", title="Traffic", text=text, facts=tuple(found))


def _tell_steps(steps: Sequence[StepTrace], history: History, setup: Setup, window_s: float) -> Stage:
    busy_s = sum(step.end_s - step.start_s for step in steps)
    prompt_s = sum(history.split_step(step).prompt_s for step in steps if step.num_prompt_tokens)
    model_s = sum(step.model_s for step in steps)
    sample_s = sum(step.sample_s for step in steps)
    rest_s = max(busy_s - model_s - sample_s, 0.0)
    decodes = [step.num_decodes for step in steps if step.num_decodes]
    chosen = steps[:: -(-len(steps) // _MAX_COUNTED_STEPS)]
    phase = count_steps(chosen, history, setup)
    span_s = min(window_s, steps[-1].end_s - steps[0].start_s)
    busy_share = min(busy_s / span_s, 1.0) if span_s > 0 else 0.0
    text = (
        f"Steps took {format_time(busy_s)}, {format_share(busy_share)} of the time from the first of them to the last."
    )
    found = [
        Fact("steps", len(steps), "steps"),
        Fact("prompts", 100 * prompt_s / busy_s if busy_s else 0.0, "% of it"),
        Fact("answers", 100 * (model_s - prompt_s) / busy_s if busy_s else 0.0, "% of it"),
        Fact("sampling", 100 * sample_s / busy_s if busy_s else 0.0, "% of it"),
        Fact("planning, text, handing out", 100 * rest_s / busy_s if busy_s else 0.0, "% of it"),
    ]
    if decodes:
        found.append(Fact("sequences that decode in a step", sum(decodes) / len(decodes), "in the mean"))
    if phase is not None and phase.model_s > 0:
        found.append(Fact("read from memory", phase.bytes_per_s / 1e9, "GB/s"))
        found.append(Fact("operations per second", phase.ops_per_s / 1e9, "Gop/s"))
    return Stage(
        name="steps",
        title="Where the engine's time went",
        text=text,
        duration_s=busy_s,
        facts=tuple(found),
        bound=None if phase is None or phase.roofline is None else phase.roofline.bound,
        pct_of_limit=None if phase is None else phase.pct_of_limit,
    )


def _tell_slowest(judged: Sequence[Judged]) -> Stage:
    slowest = sorted(judged, key=lambda pair: -pair[0].times.total_s)[:_NUM_SLOWEST]
    found = []
    for facts, verdicts in slowest:
        trace, times = facts.trace, facts.times
        cause = verdicts[0].name if verdicts else "unknown"
        found.append(Fact(trace.request_id, times.total_s * 1e3, f"ms, {cause}"))
    return Stage(
        name="slowest",
        title="The slowest requests",
        text="Each can be explained by itself: pelton explain --url URL --request ID.",
        facts=tuple(found),
    )


def _tell_prefix_cache(requests: Sequence[RequestTrace]) -> Stage:
    asked = [t for t in requests if t.first_scheduled_s is not None]
    num_prompt = sum(trace.num_prompt_tokens for trace in asked)
    num_cached = sum(trace.num_cached_tokens for trace in asked)
    misses = [trace.cache_miss for trace in asked if trace.cache_miss is not None]
    reasons = Counter(miss.reason for miss in misses)
    text = f"{num_cached:,} of {format_count(num_prompt, 'prompt token')} were reused"
    text += f", {format_share(num_cached / num_prompt)}." if num_prompt else "."
    positions = [miss.position for miss in misses if miss.reason is CacheMissReason.DIVERGED]
    place = _find_usual_place(positions)
    if place is not None:
        position, count = place
        text += f" {format_count(count, 'prompt')} went on differently at or near token {position:,}."
    found = [Fact("reused", num_cached, "tokens"), Fact("computed", num_prompt - num_cached, "tokens")]
    found.append(Fact("requests reused as a whole", len(asked) - len(misses), "requests"))
    found += [Fact(f"missed: {_MISSES[reason.value]}", count, "requests") for reason, count in reasons.most_common()]
    if place is not None:
        found.append(Fact("most usual place of differences", place[0], "tokens from the start"))
    return Stage(name="prefix_cache", title="The prefix cache", text=text, facts=tuple(found))


def _find_usual_place(positions: Sequence[int]) -> tuple[int, int] | None:
    """The position near which most others lie, and how many; None if fewer than two lie together."""
    if not positions:
        return None
    counts = {p: sum(p <= other < p + SAME_PLACE_TOKENS for other in positions) for p in set(positions)}
    best = max(sorted(counts), key=lambda position: counts[position])
    return (best, counts[best]) if counts[best] >= 2 else None


def _tell_memory(steps: Sequence[StepTrace], requests: Sequence[RequestTrace], setup: Setup) -> Stage:
    most = max(step.num_used_blocks for step in steps)
    num_preempted = sum(trace.num_preemptions for trace in requests)
    waiting = max(step.num_waiting for step in steps)
    causes = Counter(step.held_up_by.value for step in steps if step.held_up_by is not None)
    text = f"At most {format_share(most / setup.num_blocks)} of the KV cache was in use"
    text += f"; {format_count(num_preempted, 'preemption')}." if num_preempted else ", and nobody was preempted."
    if causes:
        cause, count = causes.most_common(1)[0]
        text += f" In {format_count(count, 'step')} somebody was kept waiting, mostly for: {cause}."
    return Stage(
        name="memory",
        title="KV cache and queue",
        text=text,
        facts=(
            Fact("blocks used at most", most, f"of {setup.num_blocks:,}"),
            Fact("waiting at most", waiting, "sequences"),
            Fact("preemptions", num_preempted, "times"),
        ),
    )


def _tell_machine(history: History, setup: Setup, start_s: float) -> Stage | None:
    load = measure_load(history.samples, start_s, history.now_s)
    if load is None:
        return None
    text = f"Other programs kept {load.foreign_cpus:.2f} of {format_count(load.num_cpus, 'CPU')} busy."
    found = [
        Fact("this process", load.own_cpus, "CPUs"),
        Fact("others", load.foreign_cpus, "CPUs"),
        Fact("threads that compute", setup.num_threads, "threads"),
    ]
    if load.waiting is not None:
        found.append(Fact("threads that waited for a CPU", load.waiting, "in the mean"))
    return Stage(name="machine", title="The CPUs", text=text, facts=tuple(found))
