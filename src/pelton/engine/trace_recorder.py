"""`TraceRecorder`: writes the traces of an engine, one record a step. It belongs to whoever steps the engine.

It must cost next to nothing, as it is always on: a step is one record, a request's part in it one reference.
`bench/trace_cost.py` measures it. Entry points: `add_request`, `record_step`, `finish_request`.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pelton.core.request import Request
from pelton.core.step_plan import ScheduledRequest
from pelton.core.trace import LoadSample, RequestTrace, StepTrace, Wait, WaitCause
from pelton.engine.core import StepOutcome
from pelton.engine.cpu_load import read_load
from pelton.engine.prepare import PreparedRequest
from pelton.engine.trace_log import TraceLog

_NO_SHARES = array("q")
# The load is read when a step begins this long after the last reading.
_SAMPLE_S = 1.0
# Spans of different causes that can be told apart while a request waits; of older ones only the first is known.
_NUM_KEPT_SPANS = 4096


@dataclass(slots=True)
class _Span:
    """Steps one after the other that held up waiting requests for one cause, while prompts of `tenants` ran."""

    cause: WaitCause | None
    tenants: frozenset[str]
    end_s: float


class TraceRecorder:
    """Keeps `log` up to date.

    `prefill_s` is what the model took so far for prompt tokens, in seconds; a step of them and others is divided by
    what its decodes alone are known to take, else by tokens. With `is_fair` tenants share the tokens of a step. With
    `is_batch` requests are handed over only when there is a seat for them.
    """

    def __init__(
        self,
        log: TraceLog,
        *,
        is_fair: bool,
        is_batch: bool = False,
        read_load: Callable[[], LoadSample | None] = read_load,
    ) -> None:
        self.log = log
        self.prefill_s = 0.0
        self._is_fair = is_fair
        self._is_batch = is_batch
        self._last_end_s = -math.inf  # of the last step
        self._read_load = read_load
        self._next_sample_s = 0.0
        self._num_steps = 0
        self._traces: dict[int, RequestTrace] = {}  # by number of a sequence
        # Sequences before their first step and after a preemption, with the time since when.
        self._waiting: dict[int, float] = {}
        self._spans: deque[_Span] = deque(maxlen=_NUM_KEPT_SPANS)

    def add_request(self, name: str, prepared: PreparedRequest, sequences: Sequence[Request]) -> RequestTrace:
        """A request is queued, with one sequence per choice; return its trace."""
        first, prompt = sequences[0], prepared.prompt
        now_s = time.perf_counter()
        numbers = tuple(request.arrival_number for request in sequences)
        trace = RequestTrace(
            request_id=name,
            tenant=first.tenant,
            priority=first.priority,
            numbers=numbers,
            arrival_s=prompt.arrival_s,
            tokenize_s=prompt.tokenize_s,
            queued_s=now_s,
            num_prompt_tokens=len(prompt.token_ids),
            max_tokens=first.max_tokens,
        )
        encoded_s = prompt.arrival_s + prompt.tokenize_s
        is_late = self._is_batch and self._last_end_s > encoded_s
        _add_wait(trace.waits, WaitCause.SEATS if is_late else WaitCause.STEP, encoded_s, now_s)
        self._traces.update(dict.fromkeys(numbers, trace))
        self._waiting[first.arrival_number] = now_s
        self.log.add_request(trace)
        return trace

    def record_step(self, outcome: StepOutcome, start_s: float, *, num_waiting: int, num_used_blocks: int) -> StepTrace:
        """A step that began at `start_s` has been computed; the caller adds `text_s` and `end_s` when it is over."""
        plan, now_s = outcome.plan, time.perf_counter()
        self._last_end_s = now_s
        self._num_steps += 1
        step = StepTrace(
            number=self._num_steps,
            start_s=start_s,
            end_s=now_s,
            plan_s=outcome.plan_s,
            model_s=outcome.model_s,
            sample_s=outcome.sample_s,
            text_s=0.0,
            num_decodes=0,
            num_prompt_tokens=0,
            decode_alone_s=plan.decode_alone_s,
            held_up_by=plan.held_up_by,
            num_waiting=num_waiting,
            num_used_blocks=num_used_blocks,
            flat_shares=_NO_SHARES,
        )
        for request in plan.preempted:
            self._note_preempted(request, start_s)
        if self._waiting:
            self._note_waiting(step, plan.scheduled)
        self._add_shares(step, plan.scheduled)
        if step.num_prompt_tokens:
            self.prefill_s += step.model_s - step.decode_s
        self.log.add_step(step)
        if start_s >= self._next_sample_s:
            self._sample(start_s)
        return step

    def _add_shares(self, step: StepTrace, scheduled: Sequence[ScheduledRequest]) -> None:
        # One plain loop: after the model has run, nothing of this is in the caches, and every further call costs.
        traces = self._traces
        flat: list[int] = []
        num_decodes = num_tokens = 0
        for item in scheduled:
            request, start, count = item.request, item.start, len(item.token_ids)
            number = request.arrival_number
            flat += (number, start, count)
            num_tokens += count
            if count == 1 and start >= len(request.prompt_token_ids):
                num_decodes += 1
            trace = traces.get(number)
            if trace is not None:
                steps = trace.steps
                if not steps or steps[-1] is not step:
                    steps.append(step)
        step.num_decodes = num_decodes
        step.num_prompt_tokens = num_tokens - num_decodes
        step.flat_shares = array("q", flat)

    def finish_request(self, trace: RequestTrace, finish_reason: str, end_s: float) -> None:
        """A request has ended, whatever it was doing."""
        for number in trace.numbers:
            del self._traces[number]
            since_s = self._waiting.pop(number, None)
            if since_s is not None:
                self._add_waits(trace, since_s, end_s)
        trace.preempted_s = None
        trace.finish_reason = finish_reason
        trace.end_s = end_s
        self.log.finish_request(trace)

    def finish_all(self, finish_reason: str, end_s: float) -> None:
        """All requests were dropped."""
        for trace in dict.fromkeys(self._traces.values()):
            self.finish_request(trace, finish_reason, end_s)

    def _note_preempted(self, request: Request, now_s: float) -> None:
        trace = self._traces.get(request.arrival_number)
        if trace is None:
            return
        # Admitted by an earlier step that had no tokens left for it.
        self._note_admitted(request, now_s)
        trace.num_preemptions += 1
        self._waiting[request.arrival_number] = now_s
        if trace.preempted_s is None:
            trace.preempted_s = now_s

    def _note_admitted(self, request: Request, now_s: float) -> None:
        """A sequence that waited, if it did, waits no more."""
        since_s = self._waiting.pop(request.arrival_number, None)
        trace = self._traces.get(request.arrival_number)
        if since_s is None or trace is None:
            return
        if trace.first_scheduled_s is not None:
            self._add_waits(trace, since_s, now_s)
            others = (self._waiting[number] for number in trace.numbers if number in self._waiting)
            trace.preempted_s = min(others, default=None)
            return
        admitted_s = now_s if request.first_scheduled_s is None else request.first_scheduled_s
        self._add_waits(trace, since_s, admitted_s)
        trace.num_cached_tokens = request.num_cached_tokens
        trace.cache_miss = request.cache_miss
        trace.first_scheduled_s = admitted_s

    def _add_waits(self, trace: RequestTrace, since_s: float, until_s: float) -> None:
        """Note what a sequence waited for in a span of time, merged where the cause is the same."""
        waits = trace.waits
        if trace.first_scheduled_s is not None:
            waits.append(Wait(WaitCause.PREEMPTED, since_s, until_s))
            return
        spans = []
        for span in reversed(self._spans):
            if span.end_s <= since_s:
                break
            spans.append(span)
        for span in reversed(spans):
            cause = span.cause or WaitCause.STEP
            if cause is WaitCause.BUDGET and span.tenants - {trace.tenant}:
                cause = WaitCause.TENANT_SHARE
            _add_wait(waits, cause, since_s, min(span.end_s, until_s))
        _add_wait(waits, waits[-1].cause if spans and waits else WaitCause.STEP, since_s, until_s)

    def _note_waiting(self, step: StepTrace, scheduled: Sequence[ScheduledRequest]) -> None:
        for item in scheduled:
            self._note_admitted(item.request, step.start_s)
        if self._waiting:
            self._note_held_up(step, scheduled)

    def _note_held_up(self, step: StepTrace, scheduled: Sequence[ScheduledRequest]) -> None:
        """Remember what this step did to those who wait, together with earlier steps that did the same."""
        tenants: frozenset[str] = frozenset()
        if self._is_fair:
            tenants = frozenset(item.request.tenant for item in scheduled if not _is_decode(item))
        last = self._spans[-1] if self._spans else None
        if last is not None and last.cause is step.held_up_by and last.tenants == tenants:
            last.end_s = step.end_s
        else:
            self._spans.append(_Span(step.held_up_by, tenants, step.end_s))

    def _sample(self, now_s: float) -> None:
        self._next_sample_s = now_s + _SAMPLE_S
        sample = self._read_load()
        if sample is not None:
            self.log.add_sample(sample)


def _is_decode(item: ScheduledRequest) -> bool:
    return len(item.token_ids) == 1 and item.start >= len(item.request.prompt_token_ids)


def _add_wait(waits: list[Wait], cause: WaitCause, since_s: float, until_s: float) -> None:
    """Continue `waits` up to `until_s`."""
    start_s = waits[-1].end_s if waits else since_s
    if until_s <= start_s:
        return
    if waits and waits[-1].cause is cause:
        waits[-1] = Wait(cause, waits[-1].start_s, until_s)
    else:
        waits.append(Wait(cause, start_s, until_s))
