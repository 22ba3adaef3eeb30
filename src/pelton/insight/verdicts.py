"""Verdicts: why a request took as long as it did. Rules over measured numbers, and a table of them.

Each rule is one small function that says how many of the request's seconds its situation explains, and by which
numbers it sees that. No second is claimed twice (`explain_times.py` divides them), so that verdicts can be compared:
the one that explains most is the main one. To add a verdict, write such a function and a line in `RULES`, make the
situation happen in `tests/insight/test_verdicts.py`, and describe it in docs/explain.md. Start at `judge`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pelton.insight.explain_costs import PhaseCost
from pelton.insight.explain_facts import RequestFacts
from pelton.insight.explain_types import Verdict
from pelton.insight.explain_units import (
    format_bytes,
    format_count,
    format_ops,
    format_share,
    format_time,
    get_quantile,
)

# A cause must explain this share of the request's time to be told.
MIN_SHARE = 0.2
# The plain cases are for requests that nothing special happened to: their phase must be this much of the time.
PLAIN_SHARE = 2 / 3
# A prompt with fewer tokens to compute is not long; as few are not worth caching.
_LONG_PROMPT_TOKENS = 256
_MIN_REPEATED_TOKENS = 64
# A changing prefix is seen in this many requests, and in the first third of the prompt.
_MIN_SAME_PLACE = 3
_EARLY_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class Claim:
    """`seconds` of a request that a situation explains, what is to be said of it, and the numbers that show it."""

    seconds: float
    text: str
    evidence: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rule:
    """A situation. `is_plain`: it is what remains where nothing special happened."""

    name: str
    title: str
    find: Callable[[RequestFacts], Claim | None]
    is_plain: bool = False


def judge(facts: RequestFacts) -> list[Verdict]:
    """The verdicts on a request, the main one first; "balanced" if no other one is worth telling."""
    total_s = facts.times.total_s
    if total_s <= 0:
        return []
    found = []
    for rule in RULES:
        claim = rule.find(facts)
        if claim is not None and claim.seconds >= (PLAIN_SHARE if rule.is_plain else MIN_SHARE) * total_s:
            share = f"{format_time(claim.seconds)} of {format_time(total_s)} ({format_share(claim.seconds / total_s)})"
            found.append(Verdict(rule.name, rule.title, claim.text, (share, *claim.evidence), claim.seconds))
    found.sort(key=lambda verdict: -verdict.seconds)
    return found or [_make_balanced(facts)]


def find_queued_behind_tenant(facts: RequestFacts) -> Claim | None:
    """It waited for steps, or shared them, with prompts of other tenants."""
    others = [name for name in facts.times.behind_s if name != facts.trace.tenant]
    if not others:
        return None
    worst = max(others, key=lambda name: facts.times.behind_s[name])
    tokens = facts.times.behind_tokens
    return Claim(
        sum(facts.times.behind_s[name] for name in others),
        f"Prompts of {worst or 'another caller'} were computed while this one waited, or in the same steps.",
        (
            f"{worst or 'another caller'} had {format_share(tokens[worst] / max(sum(tokens.values()), 1))} of "
            f"{format_count(sum(tokens.values()), 'prompt token')} of others in that time",
            f"queue {format_time(facts.times.queue_s)}, policy {facts.setup.config.scheduling_policy}",
        ),
    )


def find_queued_behind_prompts(facts: RequestFacts) -> Claim | None:
    """The same with prompts of its own tenant."""
    tenant = facts.trace.tenant
    if tenant not in facts.times.behind_s:
        return None
    return Claim(
        facts.times.behind_s[tenant],
        "Other prompts of the same caller were computed while this one waited, or in the same steps.",
        (
            f"{format_count(facts.times.behind_tokens[tenant], 'prompt token')} of other requests in that time",
            f"queue {format_time(facts.times.queue_s)}",
        ),
    )


def find_queued_for_memory(facts: RequestFacts) -> Claim | None:
    """It waited because no KV blocks were free."""
    if not facts.times.memory_s:
        return None
    setup, trace = facts.setup, facts.trace
    return Claim(
        facts.times.memory_s,
        "It waited until others had given KV cache blocks back.",
        (
            f"waited {format_time(facts.times.memory_s)} for blocks",
            f"its prompt needs {-(-trace.num_prompt_tokens // setup.block_size):,} of {setup.num_blocks:,} blocks of "
            f"{setup.block_size} tokens",
        ),
    )


def find_queued_for_seats(facts: RequestFacts) -> Claim | None:
    """It waited because max_num_seqs requests ran."""
    if not facts.times.seats_s:
        return None
    return Claim(
        facts.times.seats_s,
        f"{format_count(facts.setup.config.max_num_seqs, 'request')} ran already, which is all that may run at once.",
        (f"waited {format_time(facts.times.seats_s)} for a seat; max_num_seqs {facts.setup.config.max_num_seqs:,}",),
    )


def find_queued_for_step(facts: RequestFacts) -> Claim | None:
    """It waited for the steps of others to end, or for a turn that decodes of others took."""
    if not facts.times.other_wait_s:
        return None
    return Claim(
        facts.times.other_wait_s,
        "It came while a step of others was under way; a request joins between two steps.",
        (f"waited {format_time(facts.times.other_wait_s)} for steps of others, who were generating",),
    )


def find_slowed_by_decodes(facts: RequestFacts) -> Claim | None:
    """Its prompt was computed in small pieces beside tokens that others were generating."""
    if not facts.times.beside_decodes_s:
        return None
    steps = facts.prefill_steps
    return Claim(
        facts.times.beside_decodes_s,
        "Its prompt was computed in pieces, so that the answers of others would not stop meanwhile.",
        (
            f"{format_count(facts.num_uncached, 'prompt token')} in {format_count(len(steps), 'step')}, beside "
            f"{sum(step.num_decodes for step in steps) / max(len(steps), 1):.1f} others who generated",
            f"{format_time(facts.times.beside_decodes_s)} of these steps were theirs",
        ),
    )


def find_memory_pressure(facts: RequestFacts) -> Claim | None:
    """It gave its blocks back to others, waited, and computed them again."""
    num = facts.trace.num_preemptions
    if not num:
        return None
    return Claim(
        facts.times.preempted_s,
        "The KV cache was full: it gave its blocks to others, waited for new ones and computed its tokens again.",
        (
            f"preempted {format_count(num, 'time')}; {format_time(facts.times.preempted_s)} of waiting and computing "
            "again",
            f"the KV cache holds {format_count(facts.setup.num_kv_tokens, 'token')}",
        ),
    )


def find_stalled_by_prefill(facts: RequestFacts) -> Claim | None:
    """Steps in which it decoded took longer because of others' prompt tokens."""
    stalls = [step for step in facts.decode_steps if step.stall_s > 0]
    if not stalls:
        return None
    gaps = facts.times.gaps_s
    return Claim(
        facts.times.stall_s,
        "Prompts of others were computed in the same steps, which made them longer.",
        (
            f"{format_count(len(stalls), 'step')} of {len(facts.decode_steps):,} held prompt tokens of others, "
            f"{sum(step.num_prompt_tokens for step in stalls) / len(stalls):,.0f} in the mean",
            f"longest gap between two tokens {format_time(max(gaps))}, half of them under "
            f"{format_time(get_quantile(gaps, 0.5))}",
        ),
    )


def find_changing_prefix(facts: RequestFacts) -> Claim | None:
    """Its prompt parts from cached ones early, where those of other requests do too."""
    miss, positions = facts.trace.cache_miss, facts.same_place_misses
    if miss is None or len(positions) < _MIN_SAME_PLACE:
        return None
    if miss.position > _EARLY_SHARE * facts.trace.num_prompt_tokens or facts.num_uncached < _MIN_REPEATED_TOKENS:
        return None
    return Claim(
        facts.own_prefill_s,
        f"Its prompt differs from earlier ones at token {miss.position:,}, so that all after that was computed again. "
        "Something that changes from request to request (a date, an id) seems to stand at that place.",
        (
            f"{format_count(len(positions), 'request')} parted from the cached ones at tokens {min(positions):,} to "
            f"{max(positions):,}",
            f"{facts.num_uncached:,} of {format_count(facts.trace.num_prompt_tokens, 'prompt token')} were computed, "
            f"{facts.trace.num_cached_tokens:,} were reused",
        ),
    )


def find_cold_long_prompt(facts: RequestFacts) -> Claim | None:
    """Its first token waited for the prefill of many tokens that were not cached."""
    if facts.num_uncached < _LONG_PROMPT_TOKENS or find_changing_prefix(facts) is not None:
        return None
    miss = facts.trace.cache_miss
    evidence = [
        f"{facts.num_uncached:,} of {format_count(facts.trace.num_prompt_tokens, 'prompt token')} had to be computed"
        + ("" if miss is None else f" ({_describe_miss(str(miss))})")
    ]
    return Claim(
        facts.own_prefill_s,
        "Its prompt is long and was not in the prefix cache: the first token came when all of it was computed.",
        (*evidence, *_describe_prefill(facts)),
    )


def find_slow_to_start(facts: RequestFacts) -> Claim | None:
    """Most of its time went into its own prefill, of a prompt that is not long."""
    if find_changing_prefix(facts) is not None or find_cold_long_prompt(facts) is not None:
        return None
    return Claim(
        facts.own_prefill_s,
        "Most of the time went into its prompt, little into its answer.",
        (
            f"{format_count(facts.num_uncached, 'prompt token')} computed, "
            f"{format_count(facts.trace.num_output_tokens, 'token')} generated",
            *_describe_prefill(facts),
        ),
    )


def find_slow_to_stream(facts: RequestFacts) -> Claim | None:
    """Most of its time went into its own decode."""
    itl_s = facts.times.itl_s
    if itl_s is None:
        return None
    bound = facts.get_bound(facts.decode)
    reason = {"memory": "each token reads all weights and its K/V from memory", "arithmetic": "arithmetic rules it"}
    return Claim(
        facts.own_decode_s,
        "Most of the time went into the tokens of the answer, one after the other"
        + ("." if bound is None else f"; {reason[bound]}."),
        (
            f"{format_count(facts.trace.num_output_tokens, 'token')} generated, {format_time(itl_s)} apart in the mean",
            *_describe_decode(facts),
        ),
    )


def find_too_many_threads(facts: RequestFacts) -> Claim | None:
    """The engine's threads stand in each other's way."""
    share = facts.own_threads_share
    if not share:
        return None
    load = facts.load
    num_cpus = facts.setup.num_cpus if load is None else load.num_cpus
    evidence = [f"{format_count(facts.setup.num_threads, 'thread')} on {format_count(num_cpus or 0, 'CPU')}"]
    if load is not None:
        if load.waiting is not None:
            evidence.append(f"{load.waiting:.2f} threads of this process waited for a CPU in the mean")
        evidence.append(f"other programs used {load.foreign_cpus:.2f} of {load.num_cpus} CPUs")
    return Claim(
        share * facts.times.computing_s,
        "The threads that compute are more than the CPUs can run at once; a step waits for the last of them.",
        tuple(evidence),
    )


def find_busy_neighbour(facts: RequestFacts) -> Claim | None:
    """Other programs used the CPUs meanwhile."""
    share, load = facts.neighbours_share, facts.load
    if not share or load is None:
        return None
    waiting = () if load.waiting is None else (f"{load.waiting:.2f} threads of this process waited for a CPU",)
    return Claim(
        share * facts.times.computing_s,
        "Other programs used the CPUs at the same time, and the threads had to wait for them.",
        (
            f"others kept {load.foreign_cpus:.2f} of {load.num_cpus} CPUs busy, this process {load.own_cpus:.2f}",
            *waiting,
        ),
    )


def find_slow_reader(facts: RequestFacts) -> Claim | None:
    """Its reader took its time between two pieces."""
    sends = facts.trace.sends
    if not sends:
        return None
    mean_s = sum(send.done_s - send.taken_s for send in sends) / len(sends)
    return Claim(
        facts.times.reader_s,
        "The reader of the answer was slow to take it: the engine, or the connection, waited for it.",
        (
            f"{format_count(len(sends), 'piece')}, {format_time(mean_s)} in the mean until the reader asked for the "
            "next one",
        ),
    )


RULES: tuple[Rule, ...] = (
    Rule("queued_behind_tenant", "Waited behind another tenant's prompts", find_queued_behind_tenant),
    Rule("queued_behind_prompts", "Waited behind prompts of the same caller", find_queued_behind_prompts),
    Rule("queued_for_memory", "Waited for KV cache blocks", find_queued_for_memory),
    Rule("queued_for_seats", "Waited for a seat", find_queued_for_seats),
    Rule("queued_for_step", "Waited for steps of others", find_queued_for_step),
    Rule("slowed_by_decodes", "Its prompt was held back for the answers of others", find_slowed_by_decodes),
    Rule("memory_pressure", "The KV cache was too small", find_memory_pressure),
    Rule("stalled_by_prefill", "Its tokens were held up by prompts of others", find_stalled_by_prefill),
    Rule("changing_prefix", "Something early in the prompt changes each time", find_changing_prefix),
    Rule("cold_long_prompt", "A long prompt that was not cached", find_cold_long_prompt),
    Rule("too_many_threads", "More threads than CPUs", find_too_many_threads),
    Rule("busy_neighbour", "Other programs used the CPUs", find_busy_neighbour),
    Rule("slow_reader", "The reader was slow", find_slow_reader),
    Rule("slow_to_start", "Slow to start", find_slow_to_start, is_plain=True),
    Rule("slow_to_stream", "Slow to stream", find_slow_to_stream, is_plain=True),
)
BALANCED = "balanced"


def _make_balanced(facts: RequestFacts) -> Verdict:
    """Nothing stands out; what held it up, if anything did, are several things that hardly count by themselves."""
    times = facts.times
    lost = [times.memory_s, times.seats_s, times.other_wait_s, *times.behind_s.values(), times.beside_decodes_s]
    lost_s = sum([*lost, times.preempted_s, times.stall_s, times.reader_s])
    text = "Its time was divided between the prompt and the answer, and nothing held it up."
    if lost_s >= MIN_SHARE * times.total_s:
        text = f"Several things held it up, {format_time(lost_s)} in all, and none of them stands out."
    parts = [("queue", times.queue_s), ("prefill", times.prefill_s or 0.0), ("decode", times.decode_s or 0.0)]
    return Verdict(
        BALANCED,
        "Nothing stands out",
        text,
        (", ".join(f"{name} {format_time(seconds)}" for name, seconds in parts) + f" of {format_time(times.total_s)}",),
        0.0,
    )


def _describe_miss(reason: str) -> str:
    words = {"first_time": "no such prompt was known", "evicted": "its blocks had been needed for others"}
    words |= {"off": "the prefix cache is off for it", "salt": "it is cached under another salt"}
    return words.get(reason, reason)


def _describe_prefill(facts: RequestFacts) -> tuple[str, ...]:
    phase = facts.prefill
    if phase is None or phase.model_s <= 0:
        return ()
    rate = f"prefill at {format_ops(phase.ops_per_s)}/s"
    return (rate + _describe_limit(facts, phase),)


def _describe_decode(facts: RequestFacts) -> tuple[str, ...]:
    phase = facts.decode
    if phase is None or phase.model_s <= 0:
        return ()
    each = f"{format_bytes(phase.cost.num_bytes / phase.num_steps)} a step at {format_bytes(phase.bytes_per_s)}/s"
    return (each + _describe_limit(facts, phase),)


def _describe_limit(facts: RequestFacts, phase: PhaseCost) -> str:
    bound, pct = facts.get_bound(phase), phase.pct_of_limit
    if bound is None or pct is None:
        return ""
    return f", {pct:.0f} % of what the machine's {'memory' if bound == 'memory' else 'arithmetic'} allows"
