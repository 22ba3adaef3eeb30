"""Further choices of one prompt wait for the first, then share its blocks; with the prefix cache on and off."""

from __future__ import annotations

import pytest

from pelton.core.errors import InvalidParameterError

BLOCK = 4


def make_choices(kit, num: int, prompt, max_tokens: int) -> list:
    leader = kit.make_request("c0", prompt, max_tokens, seed=0)
    followers = [kit.make_request(f"c{i}", prompt, max_tokens, seed=i, leader=leader) for i in range(1, num)]
    return [leader, *followers]


@pytest.fixture(params=[True, False], ids=["cache on", "cache off"])
def scheduler(kit, request):
    return kit.make_scheduler(use_prefix_cache=request.param, chunk=4)


@pytest.mark.parametrize("length", [1, 4, 6, 8, 13])
def test_prompt_is_computed_once_for_all_choices(kit, scheduler, length: int) -> None:
    runner = kit.make_runner(BLOCK)
    choices = make_choices(kit, 4, range(length), 9)
    for request in choices:
        scheduler.add_request(request)
    assert scheduler.stats().num_waiting_by_reason == {"capacity": 1, "deferred": 3, "preempted": 0}
    kit.run_all(scheduler, runner)
    for request in choices:
        assert request.output_token_ids == kit.compute_alone(range(length), 9, request.seed)
    assert [r.num_cached_tokens for r in choices] == [0] + [length - 1] * 3
    num_prompt_tokens = sum(
        n for plan in runner.plans for name, start, n in plan if start < length and start + n <= length
    )
    assert num_prompt_tokens == length + 3


def test_choices_share_all_but_the_last_block(kit, scheduler) -> None:
    runner = kit.make_runner(BLOCK)
    for request in make_choices(kit, 3, range(10), 9):
        scheduler.add_request(request)
    for _ in range(4):
        kit.run_step(scheduler, runner)
    assert scheduler.num_running == 3
    tables = [request.block_table for request in scheduler._running]
    assert [table[:2] for table in tables] == [tables[0][:2]] * 3
    assert len({table[2] for table in tables}) == 3


@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_next_choice_computes_the_prompt_when_the_first_is_aborted(kit, scheduler, num_steps: int) -> None:
    runner = kit.make_runner(BLOCK)
    choices = make_choices(kit, 3, range(10), 5)
    for request in choices:
        scheduler.add_request(request)
    for _ in range(num_steps):
        kit.run_step(scheduler, runner)
    scheduler.abort_request("c0")
    scheduler.check_invariants()
    assert scheduler.stats().num_waiting_by_reason["deferred"] == 1
    kit.run_all(scheduler, runner)
    for request in choices[1:]:
        assert request.output_token_ids == kit.compute_alone(range(10), 5, request.seed)
    assert choices[2].num_cached_tokens == 9


def test_choice_that_waits_can_be_aborted(kit, scheduler) -> None:
    runner = kit.make_runner(BLOCK)
    choices = make_choices(kit, 3, range(10), 5)
    for request in choices:
        scheduler.add_request(request)
    kit.run_step(scheduler, runner)
    assert scheduler.abort_request("c1")
    scheduler.check_invariants()
    kit.run_all(scheduler, runner)
    assert choices[1].output_token_ids == []
    assert choices[2].output_token_ids == kit.compute_alone(range(10), 5, 2)


def test_choice_added_after_its_leader_started_or_ended_needs_no_wait(kit, scheduler) -> None:
    runner = kit.make_runner(BLOCK)
    leader, early, late = make_choices(kit, 3, range(10), 6)
    scheduler.add_request(leader)
    for _ in range(4):
        kit.run_step(scheduler, runner)
    scheduler.add_request(early)
    assert scheduler.stats().num_waiting_by_reason["deferred"] == 0
    kit.run_step(scheduler, runner)
    assert early.num_cached_tokens == 9
    kit.run_all(scheduler, runner)
    scheduler.add_request(late)
    kit.run_all(scheduler, runner)
    assert late.output_token_ids == kit.compute_alone(range(10), 6, 2)


def test_preempted_leader_does_not_leave_its_choices_behind(kit) -> None:
    for use_prefix_cache in (True, False):
        scheduler = kit.make_scheduler(num_blocks=7, use_prefix_cache=use_prefix_cache, chunk=2)
        runner = kit.make_runner(BLOCK)
        other = kit.make_request("other", range(50, 56), 14)
        scheduler.add_request(other)
        choices = make_choices(kit, 3, range(9), 10)
        for request in choices:
            scheduler.add_request(request)
        kit.run_all(scheduler, runner)
        for request in choices:
            assert request.output_token_ids == kit.compute_alone(range(9), 10, request.seed)


def test_leader_that_is_unknown_or_has_another_prompt_is_refused(kit, scheduler) -> None:
    leader = kit.make_request("a", range(4), 3)
    with pytest.raises(InvalidParameterError, match="added before"):
        scheduler.add_request(kit.make_request("b", range(4), 3, leader=leader))
    scheduler.add_request(leader)
    with pytest.raises(InvalidParameterError, match="same prompt"):
        scheduler.add_request(kit.make_request("b", range(5), 3, leader=leader))


def test_switched_off_cache_forgets_choices_when_all_are_finished(kit) -> None:
    scheduler, runner = kit.make_scheduler(use_prefix_cache=False), kit.make_runner(BLOCK)
    for request in make_choices(kit, 3, range(10), 5):
        scheduler.add_request(request)
    kit.run_all(scheduler, runner)
    assert not scheduler.kv._leaders
    same = kit.make_request("same", range(10), 5)
    scheduler.add_request(same)
    kit.run_all(scheduler, runner)
    assert same.num_cached_tokens == 0
