"""`Scheduler`: decides which tokens of which requests the next step computes.

There are no phases. Every request has `num_computed_tokens` (K/V stored) and `num_tokens` (known); each step moves the
first towards the second, and when they meet a new token is sampled. Chunked prefill, decode and the recomputation
after a preemption are all this one rule. It must not know text, models or memory; entry point: `Scheduler.schedule`.

Order of service is order of arrival: `running` followed by `waiting` is always the order in which requests were added.
A running request owns blocks for all tokens it knew when it was last scheduled. When a request needs one more block
and none is free, the newest running request is preempted: it gives its blocks back, keeps its output and later
recomputes everything. The oldest request is never preempted, so the engine always moves.
"""

from __future__ import annotations

import time
from collections import Counter, deque

from pelton.core.errors import ContextLengthError, InvalidParameterError
from pelton.core.request import Request, RequestStatus
from pelton.core.step_plan import SampledToken, ScheduledRequest, StepPlan, StepResult
from pelton.scheduling.block_pool import BlockPool


class Scheduler:
    """Owner of all requests that are not finished; the only one that changes a `Request`.

    `max_num_batched_tokens` bounds the prefill tokens of a step; requests with a single token left (decodes) come on
    top, at most `max_num_seqs` of them. Without `use_kv_cache` every scheduled request computes its whole sequence from
    position 0, in one step however long it is; further requests join while the total stays within the bound.
    """

    def __init__(
        self, block_pool: BlockPool, *, max_num_batched_tokens: int, max_num_seqs: int, use_kv_cache: bool = True
    ) -> None:
        for name, value in (("max_num_batched_tokens", max_num_batched_tokens), ("max_num_seqs", max_num_seqs)):
            if value < 1:
                raise InvalidParameterError(name, value, "at least 1")
        self.block_pool = block_pool
        self.num_preemptions = 0
        self._max_num_batched_tokens = max_num_batched_tokens
        self._max_num_seqs = max_num_seqs
        self._use_kv_cache = use_kv_cache
        self._requests: dict[str, Request] = {}
        self._running: list[Request] = []
        self._waiting: deque[Request] = deque()

    @property
    def num_running(self) -> int:
        """Requests that own blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their first step, or for blocks after a preemption."""
        return len(self._waiting)

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether `schedule` has anything to do."""
        return bool(self._requests)

    def add_request(self, request: Request) -> None:
        """Queue a new request.

        Raises `InvalidParameterError` for an id that is in use, an empty prompt or max_tokens below 1, and
        `ContextLengthError` for a request that would not fit the KV cache even alone.
        """
        if request.request_id in self._requests:
            raise InvalidParameterError("request_id", request.request_id, "an id that is not in use")
        num_prompt_tokens = len(request.prompt_token_ids)
        if num_prompt_tokens < 1:
            raise InvalidParameterError("prompt_token_ids", request.prompt_token_ids, "at least 1 token")
        if request.max_tokens < 1:
            raise InvalidParameterError("max_tokens", request.max_tokens, "at least 1")
        # The last token is only sampled: its K/V are never stored.
        num_slots = num_prompt_tokens + request.max_tokens - 1
        if num_slots > self.block_pool.num_slots:
            raise ContextLengthError(
                "prompt tokens + max_tokens",
                num_prompt_tokens + request.max_tokens,
                f"at most {self.block_pool.num_slots + 1} (the KV cache has {self.block_pool.num_slots} token slots)",
            )
        self._requests[request.request_id] = request
        self._waiting.append(request)

    def abort_request(self, request_id: str) -> bool:
        """Drop a request in whatever state it is and free its blocks; False if no such request is unfinished."""
        return self.finish_request(request_id, RequestStatus.ABORTED)

    def finish_request(self, request_id: str, status: RequestStatus) -> bool:
        """End a request from outside (a stop string was found, the caller left) and free its blocks.

        A step already planned may still contain the request; `update` then ignores it. False if unknown or finished.
        """
        assert status.is_finished, f"{status} does not end a request"
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        if request.status is RequestStatus.RUNNING:
            self._running.remove(request)
        else:
            self._waiting.remove(request)
        self._close(request, status)
        return True

    def reset(self) -> None:
        """Abort everything and make all blocks free, even if an exception cut one of the other methods short."""
        for request in self._requests.values():
            request.status = RequestStatus.ABORTED
            request.block_table = []
        self._requests.clear()
        self._running.clear()
        self._waiting.clear()
        self.block_pool.reset()

    def schedule(self) -> StepPlan:
        """Plan the next step: decodes, then unfinished prefills, then waiting requests, each in order of arrival.

        Takes blocks from the pool and may preempt. Planning again without `update` gives the same tokens again.
        """
        if not self._use_kv_cache:
            return self._schedule_whole_sequences()
        scheduled: list[ScheduledRequest] = []
        prefilling: list[Request] = []
        num_preemptions_before = self.num_preemptions
        # A copy: preemption takes requests off the end of the list, which are skipped when their turn comes.
        for request in tuple(self._running):
            if request.status is not RequestStatus.RUNNING:
                break
            if request.num_tokens - request.num_computed_tokens > 1:
                prefilling.append(request)
            elif self._grow_block_table(request):
                scheduled.append(_plan_tokens(request, 1))
        budget = self._max_num_batched_tokens
        for request in prefilling:
            if budget == 0:
                break
            if request.status is RequestStatus.RUNNING:
                scheduled.append(_plan_tokens(request, budget))
                budget -= len(scheduled[-1].token_ids)
        if self.num_preemptions == num_preemptions_before:
            while budget > 0 and self._admit_next():
                scheduled.append(_plan_tokens(self._running[-1], budget))
                budget -= len(scheduled[-1].token_ids)
        return StepPlan(scheduled=tuple(scheduled))

    def update(self, plan: StepPlan, result: StepResult) -> list[tuple[Request, SampledToken]]:
        """Take over what a step computed; return the requests that gained a token, with that token.

        A request whose token ends it (end of turn, stop token, max_tokens) has a finished status and no blocks left.
        Requests that were finished from outside since `schedule` are ignored.
        """
        updated: list[tuple[Request, SampledToken]] = []
        has_finished = False
        for item in plan.scheduled:
            request = item.request
            if request.status is not RequestStatus.RUNNING:
                continue
            if request.request_id in result.failed:
                del self._requests[request.request_id]
                self._close(request, RequestStatus.FAILED)
                has_finished = True
                continue
            request.num_computed_tokens = item.start + len(item.token_ids)
            if not item.needs_sample:
                continue
            sampled = result.sampled[request.request_id]
            request.output_token_ids.append(sampled.token_id)
            updated.append((request, sampled))
            status = _get_final_status(request, sampled.token_id)
            if status is not None:
                del self._requests[request.request_id]
                self._close(request, status)
                has_finished = True
        if has_finished:
            self._running = [r for r in self._running if r.status is RequestStatus.RUNNING]
        return updated

    def check_invariants(self) -> None:
        """AssertionError if queues, statuses, block tables and the pool contradict each other. For tests."""
        self.block_pool.check_invariants()
        in_order = [*self._running, *self._waiting]
        assert in_order == list(self._requests.values()), "queues are not the known requests in order of arrival"
        assert len(self._running) <= self._max_num_seqs, f"{len(self._running)} requests run"
        assert all(r.status is RequestStatus.RUNNING for r in self._running), "a running request has another status"
        for request in self._waiting:
            assert request.status is RequestStatus.WAITING, f"{request.request_id} waits as {request.status}"
            assert not request.block_table, f"{request.request_id} waits and owns blocks"
            assert request.num_computed_tokens == 0, f"{request.request_id} waits with computed tokens"
        for request in self._running:
            num_owned = len(request.block_table)
            num_needed = self.block_pool.get_num_blocks_for(request.num_computed_tokens)
            num_known = self.block_pool.get_num_blocks_for(request.num_tokens)
            assert num_needed <= num_owned <= num_known, f"{request.request_id} owns {num_owned} blocks"
            assert request.num_computed_tokens < request.num_tokens, f"{request.request_id} has nothing to compute"
        uses = Counter(block_id for r in self._running for block_id in r.block_table)
        for block_id in range(self.block_pool.num_blocks):
            count = self.block_pool.get_ref_count(block_id)
            assert count == uses[block_id], f"block {block_id}: {count} references, {uses[block_id]} uses"

    def _schedule_whole_sequences(self) -> StepPlan:
        scheduled: list[ScheduledRequest] = []
        budget = self._max_num_batched_tokens
        num_preemptions_before = self.num_preemptions
        for request in tuple(self._running):
            if request.status is not RequestStatus.RUNNING or (scheduled and request.num_tokens > budget):
                break
            request.num_computed_tokens = 0
            if self._grow_block_table(request):
                scheduled.append(_plan_tokens(request, request.num_tokens))
                budget -= request.num_tokens
        while self.num_preemptions == num_preemptions_before and self._waiting:
            if (scheduled and self._waiting[0].num_tokens > budget) or not self._admit_next():
                break
            request = self._running[-1]
            scheduled.append(_plan_tokens(request, request.num_tokens))
            budget -= request.num_tokens
        return StepPlan(scheduled=tuple(scheduled))

    def _admit_next(self) -> bool:
        """Start the first waiting request if there is room for all its tokens; False if not."""
        if not self._waiting or len(self._running) >= self._max_num_seqs:
            return False
        request = self._waiting[0]
        num_blocks = self.block_pool.get_num_blocks_for(request.num_tokens)
        # One spare block for each running request, or a newcomer would soon be preempted and its prefill wasted.
        if num_blocks + len(self._running) > self.block_pool.num_free_blocks:
            return False
        self._waiting.popleft()
        self._running.append(request)
        request.status = RequestStatus.RUNNING
        if request.first_scheduled_s is None:
            request.first_scheduled_s = time.perf_counter()
        request.block_table.extend(self.block_pool.allocate(num_blocks))
        return True

    def _grow_block_table(self, request: Request) -> bool:
        """Give a request blocks for all its tokens, preempting newer ones; False if it had to be preempted itself."""
        pool = self.block_pool
        while True:
            num_missing = pool.get_num_blocks_for(request.num_tokens) - len(request.block_table)
            if num_missing <= pool.num_free_blocks:
                if num_missing > 0:
                    request.block_table.extend(pool.allocate(num_missing))
                return True
            if self._preempt_newest() is request:
                return False

    def _preempt_newest(self) -> Request:
        request = self._running.pop()
        assert self._running, f"{request.request_id} does not fit the KV cache alone"
        self._waiting.appendleft(request)
        request.status = RequestStatus.WAITING
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._release_blocks(request)
        return request

    def _close(self, request: Request, status: RequestStatus) -> None:
        request.status = status
        self._release_blocks(request)

    def _release_blocks(self, request: Request) -> None:
        self.block_pool.release(request.block_table)
        # A new list: a plan may still hold the old one.
        request.block_table = []


def _plan_tokens(request: Request, max_num_tokens: int) -> ScheduledRequest:
    start = request.num_computed_tokens
    num_tokens = request.num_tokens
    num_scheduled = min(num_tokens - start, max_num_tokens)
    if num_scheduled == 1 and start + 1 == num_tokens and request.output_token_ids:
        token_ids = request.output_token_ids[-1:]
    else:
        token_ids = request.get_token_ids(start, start + num_scheduled)
    return ScheduledRequest(request, token_ids, start, start + num_scheduled == num_tokens, request.block_table)


def _get_final_status(request: Request, token_id: int) -> RequestStatus | None:
    if token_id in request.eos_token_ids or token_id in request.params.stop_token_ids:
        return RequestStatus.STOPPED
    if len(request.output_token_ids) >= request.max_tokens:
        return RequestStatus.LENGTH_CAPPED
    return None
