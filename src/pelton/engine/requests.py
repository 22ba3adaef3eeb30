"""`RequestTable`: all unfinished requests of an engine, from prepared prompts to outputs.

`LLM` and `AsyncEngine` both drive it, one caller at a time. It must not know threads, event loops or how prompts are
encoded. Entry point: `RequestTable.step`.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import os
import time
from collections.abc import Callable, Iterable
from functools import partial

from pelton.core.outputs import RequestOutput
from pelton.core.request import Request, RequestStatus
from pelton.core.sampling_params import MAX_SEED, SamplingParams
from pelton.core.step_plan import StepPlan
from pelton.core.trace import RequestTrace
from pelton.engine.core import EngineCore, StepOutcome
from pelton.engine.prepare import PreparedRequest
from pelton.engine.request_group import EngineFacts, RequestGroup
from pelton.engine.request_state import RequestState
from pelton.engine.stats import EngineStats
from pelton.engine.trace_log import TraceLog
from pelton.engine.trace_recorder import TraceRecorder
from pelton.text.tokenizer import Tokenizer

# A request's key, and an output of it.
KeyedOutput = tuple[str, RequestOutput]


class RequestTable:
    """Turns prepared requests into scheduler requests, one per choice, and steps into outputs.

    A request is known by the key that `make_key` gave it; names chosen by clients are only shown, so twins cannot
    clash. Counters since the start: `num_started_requests` and `num_started_tokens` (whose first step has come, and
    their prompt tokens), `num_new_tokens`, and `busy_s`, the seconds spent in `step`. `num_queued_requests` and
    `num_queued_tokens` are those that wait for their first step now.
    """

    def __init__(
        self,
        core: EngineCore,
        tokenizer: Tokenizer,
        *,
        context_length: int,
        load_ms: float,
        recorder: TraceRecorder | None = None,
    ) -> None:
        self.num_started_requests = 0
        self.num_started_tokens = 0
        self.num_new_tokens = 0
        self.num_queued_tokens = 0
        self.busy_s = 0.0
        self.num_scheduled = 0  # requests in the last step
        self._core = core
        self._recorder = TraceRecorder(TraceLog(0), is_fair=False) if recorder is None else recorder
        self._tokenizer = tokenizer
        self._context_length = context_length
        self._facts = EngineFacts(load_ms, core.runner.block_size, core.runner.kv_bytes_per_block)
        self._numbers = itertools.count(1)
        self._groups: dict[str, RequestGroup] = {}
        self._places: dict[str, tuple[RequestGroup, int]] = {}
        # Groups without a first step, by the id of their first choice's scheduler request.
        self._queued: dict[str, RequestGroup] = {}
        self._deadlines: list[tuple[float, str]] = []

    def make_key(self) -> str:
        """A new key, unique in this engine. May be called from any thread."""
        return f"request-{next(self._numbers)}"

    @property
    def has_unfinished(self) -> bool:
        """Whether `step` has anything to do."""
        return bool(self._groups)

    @property
    def num_unfinished(self) -> int:
        """Requests that run or wait; one with several choices counts once."""
        return len(self._groups)

    @property
    def num_queued_requests(self) -> int:
        """Requests that wait for their first step."""
        return len(self._queued)

    @property
    def is_stalled(self) -> bool:
        """Whether there are requests, but the last step computed nothing: all of them wait for something."""
        return self.num_scheduled == 0 and bool(self._groups)

    def make_stats(self) -> EngineStats:
        """Figures of this moment."""
        return EngineStats(
            num_unfinished=len(self._groups),
            num_queued_requests=len(self._queued),
            num_queued_tokens=self.num_queued_tokens,
            num_started_requests=self.num_started_requests,
            num_started_tokens=self.num_started_tokens,
            num_new_tokens=self.num_new_tokens,
            num_steps=self._core.num_steps,
            busy_s=self.busy_s,
            model_s=self._core.model_s,
            prefill_s=self._recorder.prefill_s,
            sample_s=self._core.sample_s,
            scheduler=self._core.scheduler.stats(),
        )

    def add(self, key: str, prepared: PreparedRequest, *, is_streamed: bool = True) -> RequestTrace:
        """Queue a request under `key`; return its trace. Without `is_streamed` it gives no outputs before its end.

        Raises `ContextLengthError` if it cannot fit the KV cache even alone; then nothing is queued.
        """
        requests = self._make_requests(key, prepared)
        try:
            for request in requests:
                self._core.add_request(request)
        except BaseException:
            for request in requests:
                self._core.abort_request(request.request_id)
            raise
        states = [RequestState(request, self._tokenizer) for request in requests]
        group = RequestGroup(key, prepared, states, self._facts, is_streamed=is_streamed)
        group.trace = self._recorder.add_request(group.name, prepared, requests)
        group.trace.token_times_s = [state.token_times_s for state in states]
        self._groups[key] = group
        self.num_scheduled = -1  # not stalled: the next step may find something to do
        self._places.update({request.request_id: (group, index) for index, request in enumerate(requests)})
        self._queued[requests[0].request_id] = group
        self.num_queued_tokens += len(prepared.prompt.token_ids)
        if prepared.options.timeout_s is not None:
            heapq.heappush(self._deadlines, (prepared.prompt.arrival_s + prepared.options.timeout_s, key))
        return group.trace

    def abort(self, key: str) -> bool:
        """Drop a request and free its blocks; nothing more comes of it. False if it is unknown or finished."""
        group = self._groups.get(key)
        if group is None:
            return False
        for state in group.states:
            self._core.abort_request(state.request.request_id)
        self._forget(group, time.perf_counter())
        return True

    def reset(self) -> None:
        """Drop everything, whatever interrupted the last step."""
        self._core.reset()
        self.finish_traces(RequestStatus.ABORTED.value)
        self._groups.clear()
        self._places.clear()
        self._queued.clear()
        self._deadlines.clear()
        self.num_queued_tokens = 0

    def finish_traces(self, finish_reason: str) -> None:
        """End the traces of all unfinished requests: nothing more is going to happen to them."""
        self._recorder.finish_all(finish_reason, time.perf_counter())

    def step(
        self, *, isolates_errors: bool = False, on_taken_up: Callable[[], None] | None = None
    ) -> list[KeyedOutput]:
        """Compute one step and return the outputs that follow from it.

        `on_taken_up` is called between planning and computing if requests were waiting for their first step.

        Requests whose time is over are ended first. With `isolates_errors` an exception of the model ends only the
        requests that cause it, with finish_reason "error"; otherwise it is raised and everything is as before.
        """
        start_s = time.perf_counter()
        outputs = self._end_late_requests(start_s) if self._deadlines else []
        if self._groups:
            on_planned = partial(self._note_started, on_taken_up) if self._queued else None
            outcome = self._core.step(isolates_errors=isolates_errors, on_planned=on_planned)
            self.num_scheduled = len(outcome.plan.scheduled)
            scheduler = self._core.scheduler
            step = self._recorder.record_step(
                outcome, start_s, num_waiting=scheduler.num_waiting, num_used_blocks=scheduler.num_used_blocks
            )
            self._push(outcome, outputs)
            end_s = time.perf_counter()
            step.text_s, step.end_s = end_s - step.end_s, end_s
        self.busy_s += time.perf_counter() - start_s
        return outputs

    def _push(self, outcome: StepOutcome, outputs: list[KeyedOutput]) -> None:
        now_s = time.perf_counter()
        self.num_new_tokens += len(outcome.updated)
        for request, sampled in outcome.updated:
            group, index = self._places[request.request_id]
            state = group.states[index]
            delta = state.push(sampled, now_s)
            if state.finish_reason is not None:
                # Only a stop string leaves something to finish: for all other reasons the scheduler has done it.
                self._core.finish_request(request.request_id, RequestStatus.STOPPED)
                self._add_outputs(group, group.finish_choice(index, sampled, delta, now_s), outputs, now_s)
            elif group.is_streamed:
                outputs.append((group.key, group.make_output(index, sampled, delta)))
        for request, reason in outcome.failed:
            group, index = self._places[request.request_id]
            delta = group.states[index].end(RequestStatus.FAILED.value, reason)
            self._add_outputs(group, group.finish_choice(index, None, delta, now_s), outputs, now_s)

    def _add_outputs(
        self, group: RequestGroup, new: Iterable[RequestOutput], outputs: list[KeyedOutput], now_s: float
    ) -> None:
        outputs.extend((group.key, output) for output in new)
        if group.num_unfinished == 0:
            self._forget(group, now_s)

    def _end_late_requests(self, now_s: float) -> list[KeyedOutput]:
        outputs: list[KeyedOutput] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, key = heapq.heappop(self._deadlines)
            group = self._groups.get(key)
            if group is None:
                continue
            timeout_s = group.prepared.options.timeout_s
            for index, state in enumerate(group.states):
                if state.finish_reason is None:
                    self._core.abort_request(state.request.request_id)
                    delta = state.end(RequestStatus.ABORTED.value, f"not finished after timeout_s = {timeout_s:g} s")
                    self._add_outputs(group, group.finish_choice(index, None, delta, now_s), outputs, now_s)
        return outputs

    def _note_started(self, on_taken_up: Callable[[], None] | None, plan: StepPlan) -> None:
        for item in plan.scheduled:
            group = self._queued.pop(item.request.request_id, None)
            if group is not None:
                num_tokens = len(group.prepared.prompt.token_ids)
                self.num_queued_tokens -= num_tokens
                self.num_started_requests += 1
                self.num_started_tokens += num_tokens
        if on_taken_up is not None:
            on_taken_up()

    def _forget(self, group: RequestGroup, now_s: float) -> None:
        reasons = [state.finish_reason or RequestStatus.ABORTED.value for state in group.states]
        assert group.trace is not None, "every group has a trace"
        self._recorder.finish_request(group.trace, reasons[0], now_s)
        del self._groups[group.key]
        for state in group.states:
            del self._places[state.request.request_id]
        if self._queued.pop(group.states[0].request.request_id, None) is not None:
            self.num_queued_tokens -= len(group.prepared.prompt.token_ids)

    def _make_requests(self, key: str, prepared: PreparedRequest) -> list[Request]:
        """One scheduler request per choice; all but the first wait for the first one's prompt."""
        prompt, options, constraints = prepared.prompt, prepared.options, prepared.constraints
        params = _get_choice_params(prepared.params)
        num_free = self._context_length - len(prompt.token_ids)
        seed = _pick_seed() if params.seed is None else params.seed
        requests: list[Request] = []
        for index in range(params.num_choices):
            requests.append(
                Request(
                    request_id=key if index == 0 else f"{key}-{index}",
                    prompt_token_ids=prompt.token_ids,
                    # A prompt's log-probabilities are needed once.
                    params=params if index == 0 else dataclasses.replace(params, prompt_logprobs=None),
                    max_tokens=num_free if params.max_tokens is None else min(params.max_tokens, num_free),
                    seed=(seed + index) & MAX_SEED,
                    eos_token_ids=frozenset() if params.ignore_eos else self._tokenizer.eos_token_ids,
                    arrival_s=prompt.arrival_s,
                    priority=options.priority,
                    tenant=options.tenant,
                    cache_salt=options.cache_salt,
                    leader=requests[0] if requests else None,
                    constraint=constraints[index] if constraints else None,
                )
            )
        return requests


def _get_choice_params(params: SamplingParams) -> SamplingParams:
    """Parameters of each choice: where the best must be found, log-probabilities are needed."""
    if params.num_choices > params.n and params.logprobs is None:
        return dataclasses.replace(params, logprobs=0)
    return params


def _pick_seed() -> int:
    # 53 bits, so that the seed survives JSON readers that keep numbers as doubles.
    return int.from_bytes(os.urandom(8), "little") >> 11
