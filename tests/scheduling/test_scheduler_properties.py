"""Whatever is done to a scheduler in whatever order: its tables stay consistent and every token is the right one."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)


class SchedulerMachine(RuleBasedStateMachine):
    """Everything that can be done to a scheduler; `kit` is the fixture."""

    kit = None
    scheduler = None
    requests = Bundle("requests")

    @initialize(
        num_blocks=st.integers(2, 12),
        block_size=st.sampled_from([1, 2, 4]),
        chunk=st.sampled_from([1, 3, 50]),
        max_num_seqs=st.sampled_from([1, 3, 20]),
        policy=st.sampled_from(["fcfs", "fair"]),
        use_prefix_cache=st.booleans(),
        seconds=st.sampled_from([0.0, 0.01]),
    )
    def start(self, num_blocks, block_size, chunk, max_num_seqs, policy, use_prefix_cache, seconds) -> None:
        self.scheduler = self.kit.make_scheduler(
            num_blocks,
            block_size,
            chunk=chunk,
            max_num_seqs=max_num_seqs,
            policy=policy,
            use_prefix_cache=use_prefix_cache,
        )
        self.runner = self.kit.make_runner(block_size, seconds)
        self.num_requests = 0
        self.unfinished: list = []

    @rule(
        target=requests,
        # Two token ids, so that prompts begin alike.
        prompt=st.lists(st.sampled_from([1, 2]), min_size=1, max_size=24),
        max_tokens=st.integers(1, 12),
        priority=st.sampled_from([0, 0, 1]),
        tenant=st.sampled_from("ab"),
        salt=st.sampled_from(["", "s"]),
    )
    def add(self, prompt, max_tokens, priority, tenant, salt):
        num_slots = self.scheduler.block_pool.num_slots
        prompt = prompt[:num_slots]
        max_tokens = min(max_tokens, num_slots - len(prompt) + 1)
        return self._add(prompt, max_tokens, priority=priority, tenant=tenant, cache_salt=salt)

    @rule(target=requests, leader=requests)
    def add_choice(self, leader):
        return self._add(leader.prompt_token_ids, leader.max_tokens, cache_salt=leader.cache_salt, leader=leader)

    def _add(self, prompt, max_tokens, **fields):
        self.num_requests += 1
        name = f"r{self.num_requests}"
        request = self.kit.make_request(name, prompt, max_tokens, seed=self.num_requests, **fields)
        self.scheduler.add_request(request)
        self.unfinished.append(request)
        return request

    @rule(num_steps=st.integers(1, 6))
    def run_steps(self, num_steps) -> None:
        for _ in range(num_steps):
            if self.scheduler.has_unfinished_requests:
                self.kit.run_step(self.scheduler, self.runner)

    @rule(was_run=st.booleans())
    def run_step_that_fails(self, was_run) -> None:
        """The plan is made, perhaps even computed, and its result is lost."""
        if self.scheduler.has_unfinished_requests:
            plan = self.scheduler.schedule()
            if was_run:
                self.runner.run(plan)

    @rule(request=requests)
    def abort(self, request) -> None:
        assert self.scheduler.abort_request(request.request_id) == (request in self.unfinished)

    @rule(request=requests)
    def abort_between_plan_and_step(self, request) -> None:
        if self.scheduler.has_unfinished_requests:
            plan = self.scheduler.schedule()
            self.scheduler.abort_request(request.request_id)
            self.scheduler.update(plan, self.runner.run(plan))

    @rule()
    def clear_prefix_cache(self) -> None:
        self.scheduler.clear_prefix_cache()

    @precondition(lambda self: self.num_requests % 4 == 3)
    @rule()
    def reset(self) -> None:
        self.scheduler.reset()
        assert not self.scheduler.has_unfinished_requests

    @invariant()
    def check(self) -> None:
        if self.scheduler is None:
            return
        self.scheduler.check_invariants()
        for request in self.unfinished:
            expected = self.kit.compute_alone(request.prompt_token_ids, request.max_tokens, request.seed)
            assert request.output_token_ids == expected[: len(request.output_token_ids)]
            assert 0 <= request.num_cached_tokens < len(request.prompt_token_ids) or request.num_cached_tokens == 0
        self.unfinished = [r for r in self.unfinished if not r.status.is_finished]
        stats = self.scheduler.stats()
        assert stats.num_running + stats.num_waiting == len(self.unfinished)
        assert sum(stats.num_waiting_by_reason.values()) == stats.num_waiting
        assert min(stats.num_waiting_by_reason.values()) >= 0
        assert 0 <= stats.kv_usage <= 1
        assert stats.prefix_cache.num_hit_tokens <= stats.prefix_cache.num_query_tokens

    def teardown(self) -> None:
        if self.scheduler is None:
            return
        self.kit.run_all(self.scheduler, self.runner)
        self.check()
        assert self.unfinished == []
        assert self.scheduler.block_pool.num_free_blocks == self.scheduler.block_pool.num_blocks


def test_any_history_keeps_the_tables_sound_and_the_tokens_right(kit) -> None:
    run_state_machine_as_test(
        type("Machine", (SchedulerMachine,), {"kit": kit}),
        settings=settings(max_examples=120, stateful_step_count=40, deadline=None),
    )
