"""The scheduler's rules, one by one: order of service, budgets, blocks, ends, preemption."""

from __future__ import annotations

import pytest

from pelton.core.errors import ContextLengthError, InvalidParameterError
from pelton.core.request import Request, RequestStatus
from pelton.core.sampling_params import SamplingParams
from pelton.scheduling.kv_manager import KvManager
from pelton.scheduling.limits import SchedulerLimits
from pelton.scheduling.scheduler import Scheduler


def test_whole_prompt_is_computed_in_one_step_and_then_one_token_per_step(kit) -> None:
    scheduler, runner = kit.make_scheduler(chunk=16), kit.make_runner(4)
    scheduler.add_request(kit.make_request("a", range(10), 3))
    kit.run_all(scheduler, runner)
    assert runner.plans == [[("a", 0, 10)], [("a", 10, 1)], [("a", 11, 1)]]


def test_long_prompt_is_split_into_chunks_and_sampled_only_at_its_end(kit) -> None:
    scheduler, runner = kit.make_scheduler(chunk=4), kit.make_runner(4)
    request = kit.make_request("a", range(10), 1)
    scheduler.add_request(request)
    assert kit.run_step(scheduler, runner) == []
    assert kit.run_step(scheduler, runner) == []
    ((updated, sampled),) = kit.run_step(scheduler, runner)
    assert updated is request
    assert request.output_token_ids == [sampled.token_id]
    assert runner.plans == [[("a", 0, 4)], [("a", 4, 4)], [("a", 8, 2)]]


def test_decodes_come_first_and_prefill_chunks_follow_in_order_of_arrival(kit) -> None:
    scheduler, runner = kit.make_scheduler(chunk=6), kit.make_runner(4)
    scheduler.add_request(kit.make_request("a", range(3), 5))
    kit.run_step(scheduler, runner)
    scheduler.add_request(kit.make_request("b", range(20, 28), 5))
    scheduler.add_request(kit.make_request("c", range(40, 45), 5))
    for _ in range(3):
        kit.run_step(scheduler, runner)
    assert runner.plans[1:] == [
        [("a", 3, 1), ("b", 0, 6)],
        [("a", 4, 1), ("b", 6, 2), ("c", 0, 4)],
        [("a", 5, 1), ("b", 8, 1), ("c", 4, 1)],
    ]


def test_chunk_of_one_token_still_moves_prefill_beside_many_decodes(kit) -> None:
    scheduler, runner = kit.make_scheduler(chunk=1), kit.make_runner(4)
    for name in "abc":
        scheduler.add_request(kit.make_request(name, [1], 20))
    for _ in range(3):
        kit.run_step(scheduler, runner)
    scheduler.add_request(kit.make_request("d", range(3), 2))
    for _ in range(3):
        kit.run_step(scheduler, runner)
    assert [plan[-1] for plan in runner.plans[-3:]] == [("d", 0, 1), ("d", 1, 1), ("d", 2, 1)]


def test_no_more_than_max_num_seqs_requests_run(kit) -> None:
    scheduler, runner = kit.make_scheduler(max_num_seqs=2), kit.make_runner(4)
    for name in "abc":
        scheduler.add_request(kit.make_request(name, [1], 3))
    kit.run_step(scheduler, runner)
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)
    kit.run_all(scheduler, runner)
    assert max(len(plan) for plan in runner.plans) == 2


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_exactly_max_tokens_are_generated(kit, max_tokens: int) -> None:
    scheduler = kit.make_scheduler()
    request = kit.make_request("a", range(4), max_tokens)
    scheduler.add_request(request)
    kit.run_all(scheduler, kit.make_runner(4))
    assert len(request.output_token_ids) == max_tokens
    assert request.status is RequestStatus.LENGTH_CAPPED


def test_end_token_is_kept_and_ends_the_request_even_as_the_last_allowed_one(kit) -> None:
    expected = kit.compute_alone(range(4), 3, 0)
    scheduler = kit.make_scheduler()
    request = kit.make_request("a", range(4), 3, eos=[expected[2]])
    scheduler.add_request(request)
    kit.run_all(scheduler, kit.make_runner(4))
    assert request.output_token_ids == expected
    assert request.status is RequestStatus.STOPPED


def test_tight_pool_gives_the_same_answers_as_a_large_one(kit) -> None:
    """6 blocks of 4, two requests of 6+10 tokens, each needing 4 blocks."""
    outputs = {}
    for num_blocks in (64, 6):
        scheduler = kit.make_scheduler(num_blocks)
        requests = [kit.make_request("a", range(6), 10, seed=5), kit.make_request("b", range(50, 56), 10, seed=6)]
        for request in requests:
            scheduler.add_request(request)
        kit.run_all(scheduler, kit.make_runner(4), max_num_steps=30)
        outputs[num_blocks] = [(r.output_token_ids, r.status, len(r.prompt_token_ids)) for r in requests]
        assert scheduler.block_pool.num_free_blocks == num_blocks
    assert outputs[6] == outputs[64]
    assert [o[0] for o in outputs[6]] == [kit.compute_alone(range(6), 10, 5), kit.compute_alone(range(50, 56), 10, 6)]
    assert scheduler.num_preemptions >= 1
    assert [r.num_preemptions for r in requests] == [0, scheduler.num_preemptions]


@pytest.mark.parametrize("length", [4, 8, 12])
def test_full_last_block_holds_block_size_tokens_and_all_blocks_come_back(kit, length: int) -> None:
    """Lengths divisible by the block size; finished, aborted, and reused by others."""
    scheduler, runner = kit.make_scheduler(num_blocks=4), kit.make_runner(4)
    request = kit.make_request("a", range(length), 2)
    scheduler.add_request(request)
    kit.run_step(scheduler, runner)
    assert len(request.block_table) == length // 4
    kit.run_all(scheduler, runner)
    aborted = kit.make_request("b", range(length), 2)
    scheduler.add_request(aborted)
    kit.run_step(scheduler, runner)
    assert scheduler.abort_request("b")
    scheduler.check_invariants()
    assert scheduler.block_pool.num_free_blocks == 4
    assert [scheduler.block_pool.get_ref_count(block) for block in range(4)] == [0] * 4
    others = [kit.make_request(f"o{i}", range(100 + i, 100 + i + length), 2) for i in range(5)]
    again = kit.make_request("again", range(length), 2)
    for other in [*others, again]:
        scheduler.add_request(other)
    kit.run_all(scheduler, runner)
    assert again.output_token_ids == request.output_token_ids


def test_request_that_needs_every_slot_of_the_pool_runs_alone(kit) -> None:
    scheduler, runner = kit.make_scheduler(num_blocks=3), kit.make_runner(4)
    big = kit.make_request("big", range(5), 8)
    small = kit.make_request("small", range(4), 4)
    scheduler.add_request(big)
    scheduler.add_request(small)
    kit.run_all(scheduler, runner)
    assert big.output_token_ids == kit.compute_alone(range(5), 8, 0)
    assert small.output_token_ids == kit.compute_alone(range(4), 4, 0)


def test_request_too_large_for_the_pool_is_refused_with_numbers(kit) -> None:
    scheduler = kit.make_scheduler(num_blocks=3)
    with pytest.raises(ContextLengthError, match=r"is 14; allowed: at most 13 .*12 token slots"):
        scheduler.add_request(kit.make_request("a", range(6), 8))
    assert not scheduler.has_unfinished_requests


def test_id_in_use_is_refused_and_can_be_used_again_after_the_end(kit) -> None:
    """The late end of the first request must not touch the second one under the same id."""
    scheduler, runner = kit.make_scheduler(), kit.make_runner(4)
    first = kit.make_request("twin", range(4), 5)
    scheduler.add_request(first)
    with pytest.raises(InvalidParameterError, match="request_id is 'twin'"):
        scheduler.add_request(kit.make_request("twin", range(9), 5))
    kit.run_step(scheduler, runner)
    plan = scheduler.schedule()
    result = runner.run(plan)
    scheduler.abort_request("twin")
    second = kit.make_request("twin", range(20, 29), 5)
    scheduler.add_request(second)
    assert scheduler.update(plan, result) == []
    scheduler.check_invariants()
    assert len(first.output_token_ids) == 1
    assert second.output_token_ids == []
    kit.run_all(scheduler, runner)
    assert second.output_token_ids == kit.compute_alone(range(20, 29), 5, 0)


@pytest.mark.parametrize("num_steps", [0, 1, 3, 5])
def test_abort_frees_blocks_at_once_in_any_state(kit, num_steps: int) -> None:
    scheduler, runner = kit.make_scheduler(chunk=4), kit.make_runner(4)
    request = kit.make_request("a", range(10), 50)
    scheduler.add_request(request)
    for _ in range(num_steps):
        kit.run_step(scheduler, runner)
    assert scheduler.abort_request("a")
    scheduler.check_invariants()
    assert scheduler.block_pool.num_free_blocks == 64
    assert request.status is RequestStatus.ABORTED
    assert not scheduler.has_unfinished_requests
    assert not scheduler.abort_request("a")
    assert not scheduler.abort_request("never seen")


def test_preempted_request_can_be_aborted(kit) -> None:
    scheduler, runner = kit.make_scheduler(num_blocks=6), kit.make_runner(4)
    for name in "ab":
        scheduler.add_request(kit.make_request(name, range(6), 10))
    while scheduler.num_preemptions == 0:
        kit.run_step(scheduler, runner)
    assert scheduler.abort_request("b")
    scheduler.check_invariants()
    kit.run_all(scheduler, runner)
    assert scheduler.block_pool.num_free_blocks == 6


def test_step_that_was_never_run_is_planned_again_with_the_same_tokens(kit) -> None:
    scheduler = kit.make_scheduler(chunk=4)
    request = kit.make_request("a", range(10), 5)
    scheduler.add_request(request)
    plans = [scheduler.schedule() for _ in range(3)]
    assert [(p.scheduled[0].start, p.scheduled[0].token_ids) for p in plans] == [(0, [0, 1, 2, 3])] * 3
    scheduler.check_invariants()


def test_reset_frees_everything_even_after_a_release_cut_short(kit) -> None:
    scheduler, runner = kit.make_scheduler(), kit.make_runner(4)
    for name in "ab":
        scheduler.add_request(kit.make_request(name, range(10), 50))
    kit.run_step(scheduler, runner)
    scheduler.block_pool.release([scheduler.schedule().scheduled[0].request.block_table[0]])
    scheduler.reset()
    scheduler.check_invariants()
    assert scheduler.block_pool.num_free_blocks == 64
    assert not scheduler.has_unfinished_requests


def test_without_kv_cache_every_step_computes_the_whole_sequence(kit) -> None:
    scheduler, runner = kit.make_scheduler(chunk=4, use_kv_cache=False), kit.make_runner(4)
    request = kit.make_request("a", range(10), 4)
    scheduler.add_request(request)
    kit.run_all(scheduler, runner)
    assert runner.plans == [[("a", 0, 10)], [("a", 0, 11)], [("a", 0, 12)], [("a", 0, 13)]]
    assert request.output_token_ids == kit.compute_alone(range(10), 4, 0)


def test_without_kv_cache_sequences_share_a_step_within_the_bound(kit) -> None:
    scheduler, runner = kit.make_scheduler(chunk=12, use_kv_cache=False), kit.make_runner(4)
    requests = [kit.make_request(name, range(4), 4) for name in "abc"]
    for request in requests:
        scheduler.add_request(request)
    kit.run_all(scheduler, runner)
    assert runner.plans[0] == [("a", 0, 4), ("b", 0, 4), ("c", 0, 4)]
    assert runner.plans[1] == [("a", 0, 5), ("b", 0, 5)]
    assert all(r.output_token_ids == kit.compute_alone(range(4), 4, 0) for r in requests)


def test_first_step_of_a_request_is_timed_once(kit) -> None:
    scheduler, runner = kit.make_scheduler(num_blocks=6), kit.make_runner(4)
    requests = [kit.make_request(name, range(6), 10) for name in "ab"]
    for request in requests:
        scheduler.add_request(request)
    assert requests[1].first_scheduled_s is None
    kit.run_step(scheduler, runner)
    first = requests[1].first_scheduled_s
    kit.run_all(scheduler, runner)
    assert requests[1].num_preemptions >= 1
    assert first is not None
    assert requests[1].first_scheduled_s == first


@pytest.mark.parametrize(("prompt", "max_tokens"), [([], 3), ([1], 0), ([1], -1)])
def test_request_with_nothing_to_do_is_refused(kit, prompt: list[int], max_tokens: int) -> None:
    with pytest.raises(InvalidParameterError, match="at least 1"):
        kit.make_scheduler().add_request(kit.make_request("a", prompt, max_tokens))


def test_stats_say_who_waits_for_what_and_what_blocks_hold(kit) -> None:
    scheduler, runner = kit.make_scheduler(num_blocks=6, max_num_seqs=2), kit.make_runner(4)
    for number in range(3):
        scheduler.add_request(kit.make_request(f"r{number}", range(50 * number, 50 * number + 6), 10))
    kit.run_step(scheduler, runner)
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (2, 1)
    assert stats.num_waiting_by_reason == {"capacity": 1, "deferred": 0, "preempted": 0}
    assert (stats.num_blocks, stats.kv_usage, stats.num_cached_blocks) == (6, 4 / 6, 0)
    while scheduler.num_preemptions == 0:
        kit.run_step(scheduler, runner)
    stats = scheduler.stats()
    assert stats.num_waiting_by_reason == {"capacity": 1, "deferred": 0, "preempted": 1}
    assert stats.num_preemptions == 1
    kit.run_all(scheduler, runner)
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_usage) == (0, 0, 0)
    assert stats.num_cached_blocks == 6


def test_time_of_the_first_step_comes_from_the_clock_that_was_given() -> None:
    times = iter([10.0, 20.0])
    limits = SchedulerLimits(max_num_batched_tokens=4, max_num_seqs=4)
    scheduler = Scheduler(KvManager(8, 4), limits, clock=lambda: next(times))
    requests = [Request(name, (1, 2), SamplingParams(), 2, 0, frozenset(), 0.0) for name in "ab"]
    for request in requests:
        scheduler.add_request(request)
    scheduler.schedule()
    assert [request.first_scheduled_s for request in requests] == [10.0, 20.0]


@pytest.mark.parametrize("name", ["max_num_batched_tokens", "max_num_seqs"])
def test_limits_below_one_are_refused(name: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"{name} is 0; allowed: at least 1"):
        SchedulerLimits(**{"max_num_batched_tokens": 1, "max_num_seqs": 1, name: 0})
