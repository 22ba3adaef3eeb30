"""Promise 3 for the scheduler: however requests meet, each generates what it would alone.

Random arrivals, chunk sizes, pools so small that requests are preempted, prompts that begin alike, further choices of
one prompt, priorities, tenants, step budgets, and aborts in every state. The expected output comes from the definition
of the fake model, not from a run of the scheduler. Each seed is a test id, so a failure names the load that shows it.
"""

from __future__ import annotations

import random

import pytest


def make_prompt(rng: random.Random, length: int) -> list[int]:
    """Half of all prompts begin like others."""
    stem = random.Random(rng.choice([1, 2])).choices(range(1000), k=length) if rng.random() < 0.5 else []
    kept = stem[: rng.randint(0, length)]
    return kept + [rng.randrange(1000) for _ in range(length - len(kept))]


def make_load(kit, rng: random.Random, max_num_slots: int) -> list:
    requests = []
    for index in range(rng.randint(1, 10)):
        num_prompt = rng.randint(1, max(1, rng.choice([max_num_slots - 1, max_num_slots // 4])))
        max_tokens = rng.randint(1, max_num_slots - num_prompt + 1)
        eos = [rng.randrange(1000) for _ in range(rng.choice([0, 0, 60]))]
        fields = {"priority": rng.choice([0, 0, 0, 1, -1]), "tenant": rng.choice("abc")}
        fields["cache_salt"] = rng.choice(["", "", "", "s"])
        leader = kit.make_request(
            f"r{index}", make_prompt(rng, num_prompt), max_tokens, seed=rng.randrange(99), eos=eos, **fields
        )
        requests.append(leader)
        for choice in range(rng.choice([0, 0, 0, 3])):
            fields["leader"] = leader
            prompt = leader.prompt_token_ids
            requests.append(kit.make_request(f"r{index}.{choice}", prompt, max_tokens, seed=choice, eos=eos, **fields))
    return requests


def run_load(kit, rng: random.Random, scheduler, requests: list) -> set[str]:
    """Add requests at random steps, abort some at random steps; return the ids of those that were aborted."""
    runner = kit.make_runner(scheduler.block_pool.block_size, rng.choice([0.0, 0.004]))
    steps = {request: rng.choice([0, 0, rng.randint(0, 30)]) for request in requests}
    # A choice comes with or after its leader, which is before it in the list.
    arrivals = sorted(
        (max(step, steps.get(request.leader, 0)), index) for index, (request, step) in enumerate(steps.items())
    )
    aborts = {rng.randint(0, 40): rng.choice(requests).request_id for _ in range(rng.choice([0, 0, 1, 3]))}
    aborted: set[str] = set()
    for step in range(20_000):
        while arrivals and arrivals[0][0] <= step:
            scheduler.add_request(requests[arrivals.pop(0)[1]])
        if scheduler.abort_request(aborts.get(step, "")):
            aborted.add(aborts[step])
            scheduler.check_invariants()
        if scheduler.has_unfinished_requests:
            kit.run_step(scheduler, runner)
        elif not arrivals:
            return aborted
    raise AssertionError("the load does not come to an end")


@pytest.mark.parametrize("use_kv_cache", [True, False], ids=["kv_cache", "no_kv_cache"])
@pytest.mark.parametrize("seed", range(150))
def test_every_request_generates_what_it_would_alone(kit, seed: int, use_kv_cache: bool) -> None:
    rng = random.Random(seed)
    block_size = rng.choice([1, 2, 4, 16])
    num_blocks = rng.randint(3, 12)
    scheduler = kit.make_scheduler(
        num_blocks,
        block_size,
        chunk=rng.choice([1, 2, 7, 64]),
        max_num_seqs=rng.choice([1, 2, 4, 64]),
        use_kv_cache=use_kv_cache,
        use_prefix_cache=seed % 3 > 0,
        policy=rng.choice(["fcfs", "fair"]),
        max_step_s=rng.choice([None, 0.001]),
    )
    requests = make_load(kit, rng, num_blocks * block_size)
    aborted = run_load(kit, rng, scheduler, requests)
    for request in requests:
        expected = kit.compute_alone(
            request.prompt_token_ids, request.max_tokens, request.seed, sorted(request.eos_token_ids)
        )
        if request.request_id in aborted:
            assert request.output_token_ids == expected[: len(request.output_token_ids)]
        else:
            assert request.output_token_ids == expected
    assert scheduler.block_pool.num_free_blocks == num_blocks


def test_the_random_loads_do_preempt(kit) -> None:
    """Without this the equality above might be true of loads that never run out of blocks."""
    num_preemptions = 0
    for seed in range(40):
        rng = random.Random(seed)
        scheduler = kit.make_scheduler(rng.randint(3, 12), 4, chunk=7)
        requests = make_load(kit, rng, scheduler.block_pool.num_slots)
        run_load(kit, rng, scheduler, requests)
        num_preemptions += scheduler.num_preemptions
    assert num_preemptions > 20


def test_the_random_loads_do_reuse_and_copy(kit) -> None:
    """The same for the prefix cache."""
    num_hit_tokens = 0
    reasons: set[str] = set()
    for seed in range(60):
        rng = random.Random(seed)
        scheduler = kit.make_scheduler(rng.randint(3, 12), 4, chunk=7)
        run_load(kit, rng, scheduler, make_load(kit, rng, scheduler.block_pool.num_slots))
        stats = scheduler.stats().prefix_cache
        num_hit_tokens += stats.num_hit_tokens
        reasons.update(stats.num_misses)
    assert num_hit_tokens > 500
    assert reasons == {"first_time", "diverged_at", "evicted", "partial_block", "salt"}
