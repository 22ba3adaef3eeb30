"""What a `RequestTrace` is made of: its waits, the chunks of its prompt, its tokens with the gaps before them.

All that shows traces (JSON, Perfetto, OpenTelemetry) reads these. Times are seconds of `time.perf_counter()`.
Start at `list_chunks` and `list_tokens`.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import dataclass

from pelton.core.trace import RequestTrace, Share, StepTrace, Wait, WaitCause


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens (after a preemption, known tokens) of a request that one step computed.

    `num_others_tokens` are what the step computed of others, `lost_s` the seconds of the model that went into them.
    """

    step: StepTrace
    num_tokens: int
    num_others_tokens: int
    lost_s: float


@dataclass(frozen=True, slots=True)
class Token:
    """A token after the first one of choice `choice`, which came at `time_s`, `gap_s` after the one before it.

    `wait_s` is the part of the gap outside `step`; `stall_s` is by how much prompts of others made the step longer.
    """

    step: StepTrace
    choice: int
    time_s: float
    gap_s: float
    wait_s: float
    stall_s: float


def list_waits(trace: RequestTrace, now_s: float, held_up_by: WaitCause | None = None) -> list[Wait]:
    """Spans in which the request did not advance, a last one up to `now_s` if it still waits.

    `held_up_by` is why the last step admitted nobody.
    """
    waits = list(trace.waits)
    if trace.is_finished:
        return waits
    if trace.preempted_s is not None:
        waits.append(Wait(WaitCause.PREEMPTED, trace.preempted_s, max(now_s, trace.preempted_s)))
    elif trace.first_scheduled_s is None:
        waits.append(Wait(held_up_by or WaitCause.STEP, trace.queued_s, max(now_s, trace.queued_s)))
    return waits


def list_chunks(trace: RequestTrace) -> list[Chunk]:
    """Steps that computed tokens of the prompt, and of the output again after a preemption, in order."""
    chunks = []
    for step in list(trace.steps):
        own = _find_shares(trace, step)
        num_tokens = _count_prompt_tokens(trace, own)
        if num_tokens:
            num_others = step.num_prompt_tokens + step.num_decodes - sum(share.num_tokens for share in own)
            chunks.append(Chunk(step, num_tokens, num_others, _compute_lost_s(step, num_tokens, num_others)))
    return chunks


def list_tokens(trace: RequestTrace) -> list[Token]:
    """All tokens but the first one of each choice, as they came."""
    steps = list(trace.steps)
    starts = [step.start_s for step in steps]
    tokens = []
    for choice, times_s in enumerate(trace.token_times_s):
        for before_s, time_s in itertools.pairwise(list(times_s)):
            position = bisect_right(starts, time_s) - 1
            if position < 0:
                continue
            step = steps[position]
            gap_s = time_s - before_s
            wait_s = min(max(step.start_s - before_s, 0.0), gap_s)
            tokens.append(Token(step, choice, time_s, gap_s, wait_s, _compute_stall_s(trace, step)))
    return sorted(tokens, key=lambda token: (token.time_s, token.choice))


def _find_shares(trace: RequestTrace, step: StepTrace) -> list[Share]:
    found = (step.find_share(number) for number in trace.numbers)
    return [share for share in found if share is not None]


def _count_prompt_tokens(trace: RequestTrace, shares: list[Share]) -> int:
    return sum(s.num_tokens for s in shares if s.num_tokens > 1 or s.start < trace.num_prompt_tokens)


def _compute_lost_s(step: StepTrace, num_tokens: int, num_others_tokens: int) -> float:
    """Decodes take what they take alone, as far as that is known; the rest is divided by tokens."""
    num_all = num_tokens + num_others_tokens
    if num_others_tokens < step.num_decodes:
        return step.model_s * num_others_tokens / num_all
    num_prompts = num_all - step.num_decodes
    return step.decode_s + (step.model_s - step.decode_s) * (num_prompts - num_tokens) / num_prompts


def _compute_stall_s(trace: RequestTrace, step: StepTrace) -> float:
    if step.stall_s == 0.0:
        return 0.0
    num_own = _count_prompt_tokens(trace, _find_shares(trace, step))
    return step.stall_s * (step.num_prompt_tokens - num_own) / step.num_prompt_tokens
