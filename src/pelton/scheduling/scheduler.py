"""`Scheduler`: decides which tokens of which requests the next step computes.

There are no phases. Every request has `num_computed_tokens` (K/V stored) and `num_tokens` (known); each step moves the
first towards the second, and when they meet a new token is sampled. Chunked prefill, decode, the reuse of a cached
prefix and the recomputation after a preemption are all this one rule. It must not know text, models or memory; blocks
are `kv_manager`'s matter, the order of service `policies`', the length of a step `step_budget`'s. Entry point:
`Scheduler.schedule`.

A running request owns blocks for all tokens it knew when it was last scheduled. When a request needs one more block
and none is free, a running request is preempted: it gives its blocks back, keeps its output and later recomputes what
is no longer cached. Whoever grew last has not been preempted and gains a token, so the engine always moves.
"""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Collection

from pelton.core.request import Request, RequestStatus
from pelton.core.step_plan import SampledToken, StepPlan, StepResult
from pelton.core.trace import WaitCause
from pelton.scheduling.block_pool import BlockPool
from pelton.scheduling.deferred import DeferredRequests
from pelton.scheduling.invariants import check_requests
from pelton.scheduling.kv_manager import KvManager
from pelton.scheduling.limits import SchedulerLimits, check_new_request
from pelton.scheduling.policies import make_policy
from pelton.scheduling.prompt_logprobs import add_prompt_logprobs
from pelton.scheduling.shares import count_wanted, get_final_status, plan_decode, plan_tokens
from pelton.scheduling.stats import PrefixCounters, SchedulerStats
from pelton.scheduling.step_budget import StepBudget
from pelton.scheduling.whole_sequences import plan_whole_sequences


class Scheduler:
    """Owner of all requests that are not finished; the only one that changes a `Request`.

    `clock` gives the seconds of `Request.first_scheduled_s`.
    """

    def __init__(
        self, kv_manager: KvManager, limits: SchedulerLimits, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.kv = kv_manager
        self.num_preemptions = 0
        self._limits = limits
        self._clock = clock
        self._policy = make_policy(limits.policy)
        self._budget = StepBudget(limits.max_step_s)
        self._num_arrivals = 0
        self._counters = PrefixCounters()
        # Cleared while a method changes several tables, so that `reset` knows whether one was cut short.
        self._is_consistent = True
        self._clear()

    def _clear(self) -> None:
        self._requests: dict[str, Request] = {}
        self._running: list[Request] = []  # by rank
        self._policy = make_policy(self._limits.policy)
        self._deferred = DeferredRequests()
        self._num_preempted_waiting = 0
        # Of the step being planned.
        self._preempted: list[Request] = []
        self._held_up_by: WaitCause | None = None

    @property
    def block_pool(self) -> BlockPool:
        """The blocks that requests get."""
        return self.kv.pool

    @property
    def num_running(self) -> int:
        """Requests that own blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Requests that wait for their first step, for another request's prompt, or for blocks after a preemption."""
        return self._policy.num_waiting + len(self._deferred)

    @property
    def num_used_blocks(self) -> int:
        """KV blocks that running requests own."""
        return self.block_pool.num_blocks - self.block_pool.num_free_blocks

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether `schedule` has anything to do."""
        return bool(self._requests)

    def list_block_ids(self, numbers: Collection[int]) -> list[int]:
        """Blocks of the running requests with these arrival numbers; any thread may ask."""
        running = self._running.copy()
        return [block for request in running if request.arrival_number in numbers for block in request.block_table]

    def add_request(self, request: Request) -> None:
        """Queue a new request.

        Raises `InvalidParameterError` for an id that is in use, an empty prompt, max_tokens below 1 or a leader that
        was not added before or has another prompt, and `ContextLengthError` for a request that would not fit the KV
        cache even alone.
        """
        check_new_request(request, self._requests, self.block_pool.num_slots)
        self._is_consistent = False
        self._num_arrivals += 1
        request.arrival_number = self._num_arrivals
        self._requests[request.request_id] = request
        leader = request.leader
        if self._limits.use_kv_cache:
            self.kv.join_leader(request)
            if leader is not None and not leader.status.is_finished and not leader.is_prompt_computed:
                self._deferred.add(request, leader)
                self._is_consistent = True
                return
        self._policy.add_waiting(request)
        self._is_consistent = True

    def abort_request(self, request_id: str) -> bool:
        """Drop a request in whatever state it is and free its blocks; False if no such request is unfinished."""
        return self.finish_request(request_id, RequestStatus.ABORTED)

    def finish_request(self, request_id: str, status: RequestStatus) -> bool:
        """End a request from outside (a stop string was found, the caller left) and free its blocks.

        A step already planned may still contain the request; `update` then ignores it. False if unknown or finished.
        """
        assert status.is_finished, f"{status} does not end a request"
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._is_consistent = False
        self._close(request, status)
        self._is_consistent = True
        return True

    def reset(self) -> None:
        """Abort everything and make all blocks free, even if an exception cut one of the other methods short.

        What is cached stays so, unless the tables cannot be trusted.
        """
        is_sound = self._is_consistent
        if is_sound:
            try:
                for request_id in list(self._requests):
                    self.abort_request(request_id)
            except ValueError:  # the pool says that a block was released twice
                is_sound = False
        if not is_sound or self.block_pool.num_free_blocks != self.block_pool.num_blocks:
            for request in self._requests.values():
                request.status = RequestStatus.ABORTED
                request.block_table = []
            self.kv.reset()
        self._clear()
        self._is_consistent = True

    def clear_prefix_cache(self) -> None:
        """Forget what free blocks hold, because somebody else is going to write into them."""
        self.kv.clear_prefix_cache()

    def schedule(self) -> StepPlan:
        """Plan the next step: decodes by rank, then prompt tokens in the policy's order, for running and new requests.

        Takes blocks from the pool and may preempt. Planning again without `update` gives the same tokens again.
        """
        self._is_consistent = False
        self._preempted = []
        self._held_up_by = None
        if self._limits.use_kv_cache:
            num_preemptions = self.num_preemptions
            decodes, prefilling = self._secure_blocks()
            grants = self._grant_prompt_tokens(decodes, prefilling, self.num_preemptions == num_preemptions)
            scheduled = [plan_decode(request) for request in decodes]
            scheduled += [plan_tokens(request, num_tokens) for request, num_tokens in grants.items()]
        else:
            self._budget.start(0)
            scheduled = plan_whole_sequences(
                self._running, self._policy, self._limits, grow=self._grow, admit=self._admit
            )
        self._is_consistent = True
        return StepPlan(
            tuple(scheduled),
            self.kv.list_copies(),
            preempted=tuple(self._preempted),
            held_up_by=self._held_up_by,
            decode_alone_s=self._budget.decode_alone_s,
        )

    def update(self, plan: StepPlan, result: StepResult) -> list[tuple[Request, SampledToken]]:
        """Take over what a step computed; return the requests that gained a token, with that token.

        A request whose token ends it (end of turn, stop token, max_tokens) has a finished status and no blocks left,
        as has one that failed, which gains no token. Requests that were finished from outside since `schedule` are
        ignored.
        """
        self._is_consistent = False
        self._budget.observe(result.model_s)
        self.kv.finish_copies()
        updated: list[tuple[Request, SampledToken]] = []
        for item in plan.scheduled:
            request = item.request
            if request.status is not RequestStatus.RUNNING:
                continue
            if request.request_id in result.failed:
                self._close(request, RequestStatus.FAILED)
                continue
            self._advance(request, item.start + len(item.token_ids))
            add_prompt_logprobs(request, result)
            if not item.needs_sample:
                continue
            sampled = result.sampled[request.request_id]
            request.output_token_ids.append(sampled.token_id)
            request.mirostat_mu = sampled.mirostat_mu
            updated.append((request, sampled))
            status = get_final_status(request, sampled.token_id)
            if status is not None:
                self._close(request, status)
        self._is_consistent = True
        return updated

    def stats(self) -> SchedulerStats:
        """Requests and blocks at this moment, and counters since the start."""
        pool = self.block_pool
        num_capacity = self._policy.num_waiting - self._num_preempted_waiting
        return SchedulerStats(
            num_running=self.num_running,
            num_waiting=self.num_waiting,
            num_waiting_by_reason={
                "capacity": num_capacity,
                "deferred": len(self._deferred),
                "preempted": self._num_preempted_waiting,
            },
            kv_usage=(pool.num_blocks - pool.num_free_blocks) / pool.num_blocks,
            num_blocks=pool.num_blocks,
            num_cached_blocks=pool.num_cached_blocks,
            num_preemptions=self.num_preemptions,
            prefix_cache=self._counters.make_stats(),
        )

    def check_invariants(self) -> None:
        """AssertionError if queues, statuses, block tables, pool and index contradict each other. For tests."""
        ranks = [request.rank for request in self._running]
        assert ranks == sorted(set(ranks)), "running requests are not in order, or one is there twice"
        assert len(self._running) <= self._limits.max_num_seqs, f"{len(self._running)} requests run"
        assert len(self._requests) == self.num_running + self.num_waiting, "queues and known requests differ"
        num_preempted = check_requests(self._requests.values(), self._running)
        assert num_preempted == self._num_preempted_waiting, "preempted requests are counted wrong"
        self._deferred.check_invariants(self._requests)
        self.kv.check_invariants(self._running)

    def _secure_blocks(self) -> tuple[list[Request], list[Request]]:
        """Give every decode a block for its token, preempting where none is free; return decodes and prefills."""
        decodes: list[Request] = []
        size = self.block_pool.block_size
        num_preemptions = self.num_preemptions
        # A copy: preemption takes requests out of the list.
        for request in tuple(self._running):
            num_tokens = request.num_tokens
            if num_tokens - request.num_computed_tokens > 1 or request.status is not RequestStatus.RUNNING:
                continue
            if len(request.block_table) * size >= num_tokens or self._grow(request):
                decodes.append(request)
        if self.num_preemptions != num_preemptions:
            decodes = [request for request in decodes if request.status is RequestStatus.RUNNING]
        if len(decodes) == len(self._running):
            return decodes, []
        return decodes, [r for r in self._running if r.num_tokens - r.num_computed_tokens > 1]

    def _grant_prompt_tokens(
        self, decodes: list[Request], prefilling: list[Request], can_admit: bool
    ) -> dict[Request, int]:
        """Deal the step's prompt tokens out in the policy's order; requests that wait are admitted on their turn."""
        policy, budget = self._policy, self._budget
        policy.start_step(decodes, prefilling)
        budget.start(len(decodes))
        grants: dict[Request, int] = {}
        num_left = self._limits.max_num_batched_tokens
        cause = WaitCause.BUDGET if can_admit else WaitCause.MEMORY
        while num_left > 0:
            if can_admit and len(self._running) >= self._limits.max_num_seqs:
                can_admit, cause = False, WaitCause.SEATS
            turn = policy.next_turn(can_admit)
            if turn is None or budget.is_used_up:
                break
            request = turn.request
            if request.status is RequestStatus.WAITING and not self._admit(request):
                can_admit, cause = policy.refuse(request), WaitCause.MEMORY
                continue
            num_granted = grants.get(request, 0)
            start = request.num_computed_tokens + num_granted
            num_wanted = count_wanted(request) - num_granted
            num_tokens = budget.limit(start, min(num_wanted, num_left, turn.max_tokens or num_wanted))
            if num_tokens == 0:
                break
            budget.spend(start, num_tokens)
            num_left -= num_tokens
            grants[request] = num_granted + num_tokens
            policy.grant(request, num_tokens, num_tokens == num_wanted)
        self._held_up_by = cause if policy.num_waiting else None
        return grants

    def _admit(self, request: Request) -> bool:
        """Start a waiting request if there is room for all its tokens; False if not."""
        # One spare block for each running request, or a newcomer would soon be preempted and its prefill wasted.
        if not self.kv.admit(request, len(self._running)):
            return False
        self._policy.pop_waiting(request)
        insort(self._running, request, key=_get_rank)
        request.status = RequestStatus.RUNNING
        if request.num_preemptions > 0:
            self._num_preempted_waiting -= 1
        if request.first_scheduled_s is None:
            request.first_scheduled_s = self._clock()
            self._counters.count(request)
        if request.is_prompt_computed:  # back after a preemption, and all of it was still cached
            self._resume_followers(request)
        return True

    def _grow(self, request: Request) -> bool:
        """Give a request blocks for all its tokens, preempting others; False if it had to be preempted itself."""
        while not self.kv.grow(request):
            victim = self._policy.pick_victim(self._running)
            assert len(self._running) > 1, f"{request.request_id} does not fit the KV cache alone"
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self._remove_running(request)
        self.kv.release(request)
        request.status = RequestStatus.WAITING
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._num_preempted_waiting += 1
        self._preempted.append(request)
        self._policy.add_waiting(request)

    def _advance(self, request: Request, num_computed_tokens: int) -> None:
        """A request's K/V are stored up to `num_computed_tokens`."""
        had_prompt = request.is_prompt_computed
        request.num_computed_tokens = num_computed_tokens
        if not self._limits.use_kv_cache:
            return
        is_prompt_end = not had_prompt and request.is_prompt_computed
        if is_prompt_end or num_computed_tokens // self.block_pool.block_size > request.num_indexed_blocks:
            self.kv.commit(request)
        if is_prompt_end:
            self._resume_followers(request)

    def _resume_followers(self, leader: Request) -> None:
        """The prompt of `leader` is computed: those who waited for it may start."""
        for follower in self._deferred.pop_all(leader):
            self._policy.add_waiting(follower)

    def _replace_leader(self, leader: Request) -> None:
        """`leader` is gone: the first who waited for its prompt computes it for the others."""
        followers = self._deferred.pop_all(leader)
        heir = followers[0] if followers else None
        for follower in followers:
            self.kv.leave_leader(follower)
            follower.leader = None if follower is heir else heir
            follower.block_hashes = []
            self.kv.join_leader(follower)
            if follower is heir:
                self._policy.add_waiting(follower)
            else:
                assert heir is not None
                self._deferred.add(follower, heir)

    def _close(self, request: Request, status: RequestStatus) -> None:
        was_running = request.status is RequestStatus.RUNNING
        request.status = status
        del self._requests[request.request_id]
        if was_running:
            self._remove_running(request)
            self.kv.release(request)
        elif self._deferred.discard(request):
            pass
        else:
            self._policy.remove_waiting(request)
            if request.num_preemptions > 0:
                self._num_preempted_waiting -= 1
        if self._limits.use_kv_cache:
            self.kv.leave_leader(request)
            self._replace_leader(request)

    def _remove_running(self, request: Request) -> None:
        position = bisect_left(self._running, request.rank, key=_get_rank)
        assert self._running[position] is request, f"{request.request_id} does not run"
        del self._running[position]


def _get_rank(request: Request) -> tuple[int, int]:
    return request.priority, request.arrival_number
