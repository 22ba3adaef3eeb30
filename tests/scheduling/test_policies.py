"""Order of service: priorities, arrival, and fair shares between tenants, in numbers."""

from __future__ import annotations

from collections import Counter

import pytest

from pelton.core.errors import InvalidParameterError
from pelton.scheduling.policies.fair import QUANTUM


def get_first_steps(runner) -> list[str]:
    """Request ids in the order of their first tokens."""
    order: dict[str, None] = {}
    for plan in runner.plans:
        for name, _, _ in plan:
            order.setdefault(name)
    return list(order)


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_lower_priority_number_runs_sooner_then_the_older_one(kit, policy: str) -> None:
    scheduler, runner = kit.make_scheduler(max_num_seqs=1, policy=policy), kit.make_runner(4)
    for name, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 0), ("e", 5)):
        scheduler.add_request(kit.make_request(name, [ord(name)], 2, priority=priority))
    kit.run_all(scheduler, runner)
    assert get_first_steps(runner) == ["c", "a", "d", "b", "e"]


def test_urgent_newcomer_gets_prompt_tokens_before_a_prompt_under_way(kit) -> None:
    scheduler, runner = kit.make_scheduler(chunk=4), kit.make_runner(4)
    scheduler.add_request(kit.make_request("slow", range(12), 2, priority=1))
    kit.run_step(scheduler, runner)
    scheduler.add_request(kit.make_request("fast", range(50, 54), 2))
    kit.run_step(scheduler, runner)
    assert runner.plans[1] == [("fast", 0, 4)]


def test_lowest_priority_is_preempted_first_then_the_newest(kit) -> None:
    scheduler, runner = kit.make_scheduler(num_blocks=9), kit.make_runner(4)
    requests = [
        kit.make_request(name, range(start, start + 6), 8, priority=priority)
        for name, start, priority in (("low", 0, 9), ("old", 50, 0), ("new", 100, 0))
    ]
    for request in requests:
        scheduler.add_request(request)
    first_victims = []
    while scheduler.has_unfinished_requests:
        before = [r.num_preemptions for r in requests]
        kit.run_step(scheduler, runner)
        first_victims += [r.request_id for r, n in zip(requests, before, strict=True) if r.num_preemptions > n]
    assert first_victims[:1] == ["low"]
    assert requests[1].num_preemptions == 0
    for request in requests:
        assert request.output_token_ids == kit.compute_alone(request.prompt_token_ids, 8, 0)


def test_huge_prompts_of_one_tenant_do_not_starve_another(kit) -> None:
    """Fair: the small tenant's 20 prompts are done while the large one has got about as many tokens, not 80,000."""
    steps_until = {}
    for policy in ("fcfs", "fair"):
        scheduler = kit.make_scheduler(num_blocks=30_000, chunk=512, max_num_seqs=64, policy=policy)
        runner = kit.make_runner(4)
        for number in range(20):
            scheduler.add_request(kit.make_request(f"huge{number}", range(number, number + 4000), 1, tenant="large"))
        small = [kit.make_request(f"small{n}", range(-n - 60, -n - 10), 1, tenant="small") for n in range(20)]
        for request in small:
            scheduler.add_request(request)
        while not all(request.status.is_finished for request in small):
            plan = scheduler.schedule()
            scheduler.update(plan, runner.run(plan))
        steps_until[policy] = len(runner.plans)
        tokens = Counter()
        for plan in runner.plans:
            for name, _, num_tokens in plan:
                tokens[name.rstrip("0123456789")] += num_tokens
        if policy == "fair":
            assert abs(tokens["huge"] - tokens["small"]) <= 2 * QUANTUM + 512
    assert steps_until["fair"] <= 6  # 2 * 1,000 tokens at 512 a step, and the step in which a turn was under way
    assert steps_until["fcfs"] > 150  # 80,000 tokens come first


def test_fair_shares_are_even_between_any_number_of_tenants(kit) -> None:
    scheduler = kit.make_scheduler(num_blocks=40_000, chunk=1000, max_num_seqs=64, policy="fair")
    runner = kit.make_runner(4)
    for tenant, num_prompts, length in (("a", 1, 20_000), ("b", 20, 1000), ("c", 5, 4000)):
        for number in range(num_prompts):
            base = 1_000_000 * number + (ord(tenant) * 100_000)
            scheduler.add_request(kit.make_request(f"{tenant}{number}", range(base, base + length), 1, tenant=tenant))
    tokens = Counter()
    for _ in range(30):
        plan = scheduler.schedule()
        scheduler.update(plan, runner.run(plan))
        for item in plan.scheduled:
            tokens[item.request.tenant] += len(item.token_ids)
        assert max(tokens.values()) - min(tokens.values()) <= 2 * QUANTUM
    assert sum(tokens.values()) == 30_000


def test_generated_tokens_count_towards_a_tenants_share(kit) -> None:
    scheduler = kit.make_scheduler(num_blocks=40_000, chunk=64, max_num_seqs=64, policy="fair")
    runner = kit.make_runner(4)
    for number in range(32):
        scheduler.add_request(kit.make_request(f"d{number}", [number], 400, tenant="decoding"))
    for _ in range(3):
        kit.run_step(scheduler, runner)
    for tenant in ("decoding", "other"):
        base = ord(tenant[0]) * 100_000
        scheduler.add_request(kit.make_request(f"p-{tenant}", range(base, base + 9000), 1, tenant=tenant))
    prompt_tokens = Counter()
    for _ in range(100):
        plan = scheduler.schedule()
        scheduler.update(plan, runner.run(plan))
        for item in plan.scheduled:
            if item.request.request_id.startswith("p-"):
                prompt_tokens[item.request.tenant] += len(item.token_ids)
    # 6,400 prompt and 3,200 generated tokens in 100 steps are 4,800 each, so 1,600 of the prompts' for the first.
    assert sum(prompt_tokens.values()) == 6400
    assert abs(prompt_tokens["decoding"] - 1600) <= 2 * QUANTUM


def test_tenant_that_was_idle_has_saved_nothing_up(kit) -> None:
    scheduler = kit.make_scheduler(num_blocks=40_000, chunk=512, max_num_seqs=64, policy="fair")
    runner = kit.make_runner(4)
    scheduler.add_request(kit.make_request("idle0", [1], 1, tenant="idle"))
    scheduler.add_request(kit.make_request("busy0", range(10**5, 10**5 + 30_000), 1, tenant="busy"))
    for _ in range(20):
        kit.run_step(scheduler, runner)
    scheduler.add_request(kit.make_request("idle1", range(10**6, 10**6 + 20_000), 1, tenant="idle"))
    tokens = Counter()
    for _ in range(20):
        plan = scheduler.schedule()
        scheduler.update(plan, runner.run(plan))
        for item in plan.scheduled:
            tokens[item.request.tenant] += len(item.token_ids)
    assert abs(tokens["idle"] - tokens["busy"]) <= 2 * QUANTUM


def test_request_without_room_lets_others_pass_for_a_while_and_then_runs(kit) -> None:
    scheduler = kit.make_scheduler(num_blocks=64, chunk=64, max_num_seqs=16, policy="fair")
    runner = kit.make_runner(4)
    scheduler.add_request(kit.make_request("first", range(100), 40, tenant="x"))
    kit.run_step(scheduler, runner)
    kit.run_step(scheduler, runner)
    huge = kit.make_request("huge", range(1000, 1200), 3, tenant="huge")
    scheduler.add_request(huge)
    number = 0
    passed = 0
    while huge.first_scheduled_s is None:
        scheduler.add_request(kit.make_request(f"s{number}", [number, 1, 2, 3, 4], 2, tenant="small"))
        number += 1
        kit.run_step(scheduler, runner)
        passed = sum(name.startswith("s") for name in get_first_steps(runner))
        assert number < 5000, "the huge prompt starves"
    assert passed > 10
    kit.run_all(scheduler, runner)
    assert huge.output_token_ids == kit.compute_alone(range(1000, 1200), 3, 0)


def test_tenants_that_left_are_forgotten(kit) -> None:
    scheduler, runner = kit.make_scheduler(policy="fair"), kit.make_runner(4)
    for number in range(3000):
        scheduler.add_request(kit.make_request(f"r{number}", [number], 1, tenant=f"t{number}"))
        plan = scheduler.schedule()
        scheduler.update(plan, runner.run(plan))
    assert len(scheduler._policy._tenants) < 1100


def test_unknown_policy_is_refused_with_the_known_ones(kit) -> None:
    with pytest.raises(InvalidParameterError, match="'lifo'; allowed: one of fcfs, fair"):
        kit.make_scheduler(policy="lifo")


@pytest.mark.parametrize("policy", ["fcfs", "fair"])
def test_aborts_of_waiting_requests_leave_the_order_of_the_others(kit, policy: str) -> None:
    scheduler, runner = kit.make_scheduler(max_num_seqs=1, policy=policy), kit.make_runner(4)
    for number in range(500):
        scheduler.add_request(kit.make_request(f"r{number:03}", [number], 1))
    for number in range(500):
        if number % 50:
            assert scheduler.abort_request(f"r{number:03}")
    assert scheduler.num_waiting == 10
    kit.run_all(scheduler, runner)
    assert get_first_steps(runner) == [f"r{number:03}" for number in range(0, 500, 50)]
