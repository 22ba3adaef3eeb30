"""`RequestTimes`: where the seconds of a request went. Every second is in one part, so that parts can be compared.

Measured times only, no costs and no machine. Start at `divide_times`.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from pelton.core.trace import RequestTrace, StepTrace, Wait, WaitCause
from pelton.insight.explain_history import History
from pelton.insight.request_parts import list_waits


@dataclass(slots=True)
class RequestTimes:
    """A request's life from its arrival to `end_s` (now, if it is unfinished): its phases, then the parts of them.

    Phases are None where they have not begun. `behind_s` and `behind_tokens` are seconds spent waiting for, or sharing
    steps with, prompt tokens of others, by tenant, before the first token. `beside_decodes_s` are those that decodes of
    others took of the steps meanwhile. `memory_s`, `seats_s` and `other_wait_s` are the rest of the queue;
    `preempted_s` is waiting after preemptions and computing again; `stall_s` is by how much prompts of others made
    decode steps longer; `reader_s` is what the reader took between two pieces of the answer. What is left of prefill
    and decode is the request's own.
    """

    total_s: float = 0.0
    tokenize_s: float = 0.0
    queue_s: float = 0.0
    prefill_s: float | None = None
    ttft_s: float | None = None
    decode_s: float | None = None
    memory_s: float = 0.0
    seats_s: float = 0.0
    other_wait_s: float = 0.0
    behind_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    behind_tokens: Counter[str] = field(default_factory=Counter)
    beside_decodes_s: float = 0.0
    preempted_s: float = 0.0
    own_prefill_s: float = 0.0
    stall_s: float = 0.0
    reader_s: float = 0.0
    own_decode_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)

    @property
    def itl_s(self) -> float | None:
        """The mean of the gaps between tokens; None where there are none."""
        return sum(self.gaps_s) / len(self.gaps_s) if self.gaps_s else None

    @property
    def computing_s(self) -> float:
        """Prefill and decode that were its own."""
        return self.own_prefill_s + self.own_decode_s


def divide_times(trace: RequestTrace, history: History) -> RequestTimes:
    """Divide a request's life up."""
    last_s = max((times[-1] for times in trace.token_times_s if times), default=None)
    end_s = history.now_s if trace.end_s is None else trace.end_s
    if trace.sends and trace.is_finished:
        end_s = max(end_s, trace.sends[-1].done_s)
    times = RequestTimes(total_s=max(end_s - trace.arrival_s, 0.0), tokenize_s=trace.tokenize_s)
    times.gaps_s = [b - a for choice in trace.token_times_s for a, b in itertools.pairwise(choice)]
    started_s, first_s = trace.first_scheduled_s, trace.first_token_s
    # Why a wait goes on is found out only where one does.
    is_queued = started_s is None and not trace.is_finished
    waits = list_waits(trace, end_s, history.find_cause(trace.queued_s, end_s) if is_queued else None)
    for wait in waits:
        if wait.cause is not WaitCause.PREEMPTED:
            _add_wait(times, wait, trace, history)
    times.queue_s = sum(w.end_s - w.start_s for w in waits if w.cause is not WaitCause.PREEMPTED)
    if started_s is None:
        return times
    first_end_s = first_s if first_s is not None else end_s
    times.prefill_s = max(first_end_s - started_s, 0.0)
    _add_prefill(times, trace, history, started_s, first_end_s, waits)
    if first_s is None or last_s is None:
        return times
    times.ttft_s = first_s - trace.arrival_s
    stop_s = end_s if trace.end_s is None or trace.sends else max(last_s, trace.end_s)
    times.decode_s = max(stop_s - first_s, 0.0)
    _add_decode(times, trace, history, first_s, stop_s, waits)
    return times


def _add_wait(times: RequestTimes, wait: Wait, trace: RequestTrace, history: History) -> None:
    seconds = wait.end_s - wait.start_s
    if wait.cause is WaitCause.MEMORY:
        times.memory_s += seconds
    elif wait.cause is WaitCause.SEATS:
        times.seats_s += seconds
    else:
        times.other_wait_s += seconds - _add_others(times, trace, history, wait.start_s, wait.end_s)


def _add_others(times: RequestTimes, trace: RequestTrace, history: History, start_s: float, end_s: float) -> float:
    """Note whose prompts ran in a span of time; return the seconds that they explain."""
    explained_s = 0.0
    for step in history.find_steps(start_s, end_s):
        split = history.split_step(step)
        if not split.num_prompt_tokens or step.end_s <= step.start_s:
            continue
        overlap = (min(step.end_s, end_s) - max(step.start_s, start_s)) / (step.end_s - step.start_s)
        share = split.prompt_s / step.model_s if step.model_s > 0 else 1.0
        seconds = (step.end_s - step.start_s) * overlap * share
        for number, num_tokens in split.prompt_tokens.items():
            if number not in trace.numbers:
                tenant, part = history.get_tenant(number), num_tokens / split.num_prompt_tokens
                times.behind_s[tenant] += seconds * part
                times.behind_tokens[tenant] += round(num_tokens * overlap)
                explained_s += seconds * part
    return explained_s


def _add_prefill(
    times: RequestTimes, trace: RequestTrace, history: History, start_s: float, end_s: float, waits: list[Wait]
) -> None:
    """Divide the span from the first step to the first token up."""
    preempted_s = _sum_preempted(waits, start_s, end_s)
    lost_s = preempted_s
    before_s = start_s
    for step in trace.steps:
        if step.start_s >= end_s:
            break
        lost_s += _add_shared_step(times, trace, history, step)
        if not preempted_s and step.start_s > before_s:
            lost_s += _add_others(times, trace, history, before_s, step.start_s)
        before_s = step.end_s
    times.preempted_s += preempted_s
    times.own_prefill_s = max(end_s - start_s - lost_s, 0.0)


def _add_shared_step(times: RequestTimes, trace: RequestTrace, history: History, step: StepTrace) -> float:
    """Note what others took of a step in which the request's prompt was computed; return these seconds."""
    if step.num_sequences == 1:
        return 0.0
    split = history.split_step(step)
    times.beside_decodes_s += split.decode_s
    lost_s = split.decode_s
    for number, num_tokens in split.prompt_tokens.items():
        if number not in trace.numbers:
            tenant, seconds = history.get_tenant(number), split.prompt_s * num_tokens / split.num_prompt_tokens
            times.behind_s[tenant] += seconds
            times.behind_tokens[tenant] += num_tokens
            lost_s += seconds
    return lost_s


def _add_decode(
    times: RequestTimes, trace: RequestTrace, history: History, start_s: float, end_s: float, waits: list[Wait]
) -> None:
    """Divide the span after the first token up."""
    preempted_s = _sum_preempted(waits, start_s, end_s)
    for step in reversed(trace.steps):
        if step.start_s < start_s:
            break
        if not step.num_prompt_tokens:
            continue
        split = history.split_step(step) if trace.num_preemptions else None
        num_again = 0 if split is None else sum(split.prompt_tokens[number] for number in trace.numbers)
        if split is not None and num_again:
            preempted_s += split.prompt_s * num_again / split.num_prompt_tokens
        else:
            times.stall_s += step.stall_s
    times.preempted_s += preempted_s
    left_s = max(end_s - start_s - times.stall_s - preempted_s, 0.0)
    times.reader_s = min(sum(send.done_s - send.taken_s for send in trace.sends), left_s)
    times.own_decode_s = left_s - times.reader_s


def _sum_preempted(waits: list[Wait], start_s: float, end_s: float) -> float:
    spans = (min(w.end_s, end_s) - max(w.start_s, start_s) for w in waits if w.cause is WaitCause.PREEMPTED)
    return sum(max(span, 0.0) for span in spans)
