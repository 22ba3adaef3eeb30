"""Promise 3 for the scheduler: however requests meet, each generates what it would alone.

Random arrivals, chunk sizes, pools so small that requests are preempted, and aborts in every state. The expected output
comes from the definition of the fake model, not from a run of the scheduler. Each seed is a test id, so a failure names
the load that shows it.
"""

from __future__ import annotations

import random

import pytest


def make_load(kit, rng: random.Random, max_num_slots: int) -> list:
    requests = []
    for index in range(rng.randint(1, 10)):
        num_prompt = rng.randint(1, max(1, rng.choice([max_num_slots - 1, max_num_slots // 4])))
        max_tokens = rng.randint(1, max_num_slots - num_prompt + 1)
        prompt = [rng.randrange(1000) for _ in range(num_prompt)]
        eos = [rng.randrange(1000) for _ in range(rng.choice([0, 0, 60]))]
        requests.append(kit.make_request(f"r{index}", prompt, max_tokens, seed=rng.randrange(99), eos=eos))
    return requests


def run_load(kit, rng: random.Random, scheduler, requests: list) -> set[str]:
    """Add requests at random steps, abort some at random steps; return the ids of those that were aborted."""
    runner = kit.make_runner(scheduler.block_pool.block_size)
    arrivals = sorted((rng.choice([0, 0, rng.randint(0, 30)]), index) for index in range(len(requests)))
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
