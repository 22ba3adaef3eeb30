"""The prefix cache: what is reused, what is counted, and why something was not. Every token is checked by the model."""

from __future__ import annotations

import itertools

import pytest

from pelton.core.cache_miss import CacheMiss, CacheMissReason
from pelton.scheduling.prefix_index import compute_block_hash, compute_root

BLOCK = 4


def run_one(kit, scheduler, runner, name: str, prompt, max_tokens: int = 2, **fields):
    """Run one request to its end and check that it generated what it would alone."""
    request = kit.make_request(name, prompt, max_tokens, **fields)
    scheduler.add_request(request)
    kit.run_all(scheduler, runner)
    assert request.output_token_ids == kit.compute_alone(prompt, max_tokens, request.seed)
    return request


@pytest.fixture
def engine(kit):
    scheduler, runner = kit.make_scheduler(num_blocks=64, block_size=BLOCK), kit.make_runner(BLOCK)

    def run(name: str, prompt, max_tokens: int = 2, **fields):
        return run_one(kit, scheduler, runner, name, prompt, max_tokens, **fields)

    run.scheduler, run.runner = scheduler, runner
    return run


@pytest.mark.parametrize(("length", "num_cached"), [(8, 7), (4, 3), (5, 4), (1, 0), (12, 11), (13, 12)])
def test_repeated_prompt_computes_its_last_token_only(engine, length: int, num_cached: int) -> None:
    """Also when it ends on the edge of a block."""
    first = engine("first", range(length), seed=3)
    again = engine("again", range(length), seed=3)
    assert (first.num_cached_tokens, again.num_cached_tokens) == (0, num_cached)
    assert again.output_token_ids == first.output_token_ids
    assert first.cache_miss == (CacheMiss(CacheMissReason.FIRST_TIME, 0) if length > 1 else None)
    assert again.cache_miss is None
    assert engine.runner.plans[2] == [("again", num_cached, length - num_cached)]


@pytest.mark.parametrize("num_shared", [1, 3, 4, 5, 7, 8, 20])
def test_prompts_share_their_beginning_to_the_token(engine, num_shared: int) -> None:
    common = list(range(100, 100 + num_shared))
    engine("first", [*common, 1, 2, 3, 4, 5])
    second = engine("second", [*common, 6, 7, 8, 9, 10])
    assert second.num_cached_tokens == num_shared
    assert second.cache_miss == CacheMiss(CacheMissReason.DIVERGED, num_shared)
    assert str(second.cache_miss) == f"diverged_at={num_shared}"


def test_system_prompt_of_20_tokens_is_reused_as_20_with_blocks_of_16(kit) -> None:
    scheduler, runner = kit.make_scheduler(num_blocks=16, block_size=16), kit.make_runner(16)
    system = list(range(20))
    run_one(kit, scheduler, runner, "a", [*system, 500, 501, 502])
    second = run_one(kit, scheduler, runner, "b", [*system, 600, 601])
    assert second.num_cached_tokens == 20
    assert runner.plans[-2] == [("b", 20, 2)]


def test_next_turn_of_a_chat_reuses_prompt_and_answer(engine) -> None:
    first = engine("turn 1", range(6), 9)
    history = [*first.prompt_token_ids, *first.output_token_ids]
    second = engine("turn 2", [*history, 7, 8, 9])
    # K/V of the last answer token were never computed.
    assert second.num_cached_tokens == len(history) - 1
    assert second.cache_miss == CacheMiss(CacheMissReason.FIRST_TIME, len(history) - 1)


def test_running_request_shares_its_prompt_with_a_later_one(kit) -> None:
    scheduler, runner = kit.make_scheduler(), kit.make_runner(BLOCK)
    scheduler.add_request(kit.make_request("a", range(10), 20))
    for _ in range(3):
        kit.run_step(scheduler, runner)
    second = kit.make_request("b", [*range(10), 99], 5)
    scheduler.add_request(second)
    kit.run_step(scheduler, runner)
    assert second.num_cached_tokens == 10
    kit.run_all(scheduler, runner)
    assert second.output_token_ids == kit.compute_alone([*range(10), 99], 5, 0)


def test_prompt_that_is_still_being_computed_is_not_reused(kit) -> None:
    scheduler, runner = kit.make_scheduler(chunk=32), kit.make_runner(BLOCK)
    requests = [kit.make_request(name, range(12), 3) for name in "ab"]
    for request in requests:
        scheduler.add_request(request)
    kit.run_all(scheduler, runner)
    assert [r.num_cached_tokens for r in requests] == [0, 0]
    assert all(r.output_token_ids == kit.compute_alone(range(12), 3, 0) for r in requests)


def test_salts_keep_equal_prompts_apart(engine) -> None:
    """Each identity is cold once and warm after; a miss says that only the salt is another."""
    cached = []
    for number, salt in enumerate(["", "s1", "s2", "", "s1", "s2"]):
        request = engine(f"r{number}", range(12), cache_salt=salt)
        cached.append(request.num_cached_tokens)
        if number in (1, 2):
            assert request.cache_miss == CacheMiss(CacheMissReason.SALT, 0)
    assert cached == [0, 0, 0, 11, 11, 11]


def test_roots_of_different_kinds_differ_where_their_texts_are_equal() -> None:
    roots = {compute_root(kind, text) for kind in ("salt", "leader") for text in ("", "1", "s1")}
    assert len(roots) == 6
    assert compute_block_hash(compute_root("salt", ""), [1, 2]) != compute_block_hash(compute_root("salt", ""), [2, 1])


def test_evicted_prompt_is_a_miss_that_says_so(kit) -> None:
    """After the pool was filled with others, the first prompt is computed anew and is nobody else's."""
    scheduler, runner = kit.make_scheduler(num_blocks=4), kit.make_runner(BLOCK)
    first = run_one(kit, scheduler, runner, "first", range(8))
    for number in range(5):
        run_one(kit, scheduler, runner, f"o{number}", range(100 * number + 20, 100 * number + 28))
    again = run_one(kit, scheduler, runner, "again", range(8))
    assert again.output_token_ids == first.output_token_ids
    assert again.num_cached_tokens == 0
    assert again.cache_miss == CacheMiss(CacheMissReason.EVICTED, 0)
    pool = scheduler.block_pool
    assert pool.num_free_blocks == 4
    assert [pool.get_ref_count(block) for block in range(4)] == [0] * 4


def test_oldest_prompt_is_evicted_first_and_its_end_before_its_beginning(kit) -> None:
    scheduler, runner = kit.make_scheduler(num_blocks=8), kit.make_runner(BLOCK)
    run_one(kit, scheduler, runner, "old", range(12), 1)
    run_one(kit, scheduler, runner, "new", range(50, 62), 1)
    run_one(kit, scheduler, runner, "other", range(80, 92), 1)  # takes the two fresh blocks and one of "old"
    assert run_one(kit, scheduler, runner, "new again", range(50, 62), 1).num_cached_tokens == 11
    old = kit.make_request("old again", range(12), 1)
    scheduler.add_request(old)
    scheduler.schedule()
    assert old.num_cached_tokens in (4, 8)
    assert old.cache_miss.reason is CacheMissReason.EVICTED


def test_copy_without_room_is_left_out_and_named(kit) -> None:
    scheduler, runner = kit.make_scheduler(num_blocks=3), kit.make_runner(BLOCK)
    run_one(kit, scheduler, runner, "a", range(8), 1)
    # Needs all three blocks itself: one shared, two own, none left to copy from.
    second = run_one(kit, scheduler, runner, "b", [0, 1, 2, 3, 4, 5, 99, 98, 97], 2)
    assert second.num_cached_tokens == 4
    assert second.cache_miss == CacheMiss(CacheMissReason.PARTIAL_BLOCK, 4)


def test_switched_off_cache_reuses_nothing(kit) -> None:
    scheduler, runner = kit.make_scheduler(use_prefix_cache=False), kit.make_runner(BLOCK)
    requests = [run_one(kit, scheduler, runner, name, range(9)) for name in "ab"]
    assert [r.num_cached_tokens for r in requests] == [0, 0]
    assert requests[1].cache_miss == CacheMiss(CacheMissReason.OFF, 0)
    assert scheduler.stats().prefix_cache.num_query_tokens == 0
    assert scheduler.stats().num_cached_blocks == 0


def test_queries_and_hits_are_counted_once_per_admitted_request(engine, kit) -> None:
    engine("a", range(9))
    engine("b", range(9))
    engine("c", [*range(6), 77, 78, 79])
    stats = engine.scheduler.stats().prefix_cache
    assert stats.num_query_tokens == 27
    assert stats.num_hit_tokens == 0 + 8 + 6
    assert stats.num_misses == {"first_time": 1, "diverged_at": 1}


def test_hits_after_a_preemption_are_used_but_not_counted(kit) -> None:
    scheduler, runner = kit.make_scheduler(num_blocks=6), kit.make_runner(BLOCK)
    requests = [kit.make_request(name, range(start, start + 6), 10) for name, start in (("a", 0), ("b", 50))]
    for request in requests:
        scheduler.add_request(request)
    kit.run_all(scheduler, runner)
    assert requests[1].num_preemptions >= 1
    assert [r.num_cached_tokens for r in requests] == [0, 0]
    stats = scheduler.stats().prefix_cache
    assert (stats.num_query_tokens, stats.num_hit_tokens) == (12, 0)
    resumed = [start for plan in runner.plans for name, start, _ in plan if name == "b"]
    assert any(0 < later <= earlier for earlier, later in itertools.pairwise(resumed))


def test_reset_keeps_what_is_cached_unless_a_method_was_cut_short(kit) -> None:
    scheduler, runner = kit.make_scheduler(), kit.make_runner(BLOCK)
    scheduler.add_request(kit.make_request("a", range(9), 50))
    kit.run_step(scheduler, runner)
    scheduler.reset()
    scheduler.check_invariants()
    assert run_one(kit, scheduler, runner, "b", range(9)).num_cached_tokens == 8
    scheduler.add_request(kit.make_request("c", range(9), 50))
    kit.run_step(scheduler, runner)
    plan = scheduler.schedule()
    with pytest.raises(AttributeError):
        scheduler.update(plan, None)
    scheduler.reset()
    scheduler.check_invariants()
    assert run_one(kit, scheduler, runner, "d", range(9)).num_cached_tokens == 0


def test_cleared_cache_is_cold_and_running_requests_go_on(kit) -> None:
    scheduler, runner = kit.make_scheduler(), kit.make_runner(BLOCK)
    run_one(kit, scheduler, runner, "a", range(9))
    running = kit.make_request("b", range(50, 59), 8)
    scheduler.add_request(running)
    kit.run_step(scheduler, runner)
    scheduler.clear_prefix_cache()
    scheduler.check_invariants()
    kit.run_all(scheduler, runner)
    assert running.output_token_ids == kit.compute_alone(range(50, 59), 8, 0)
    assert run_one(kit, scheduler, runner, "c", range(9)).num_cached_tokens == 0


def test_copy_that_was_never_made_leaves_nothing_cached(kit) -> None:
    """A request is admitted with a copy, and is aborted before the step that would have made it."""
    scheduler, runner = kit.make_scheduler(num_blocks=8), kit.make_runner(BLOCK)
    run_one(kit, scheduler, runner, "a", range(7), 1)
    scheduler.add_request(kit.make_request("b", [0, 1, 2, 3, 4, 5, 90, 91], 3))
    plan = scheduler.schedule()
    assert len(plan.block_copies) == 1
    assert scheduler.schedule().block_copies == plan.block_copies
    scheduler.check_invariants()
    scheduler.abort_request("b")
    scheduler.check_invariants()
    assert scheduler.block_pool.num_free_blocks == 8
    for number in range(4):
        run_one(kit, scheduler, runner, f"c{number}", [0, 1, 2, 3, 4, 5, number])


def test_saved_blocks_are_found_by_another_scheduler(kit) -> None:
    scheduler, runner = kit.make_scheduler(), kit.make_runner(BLOCK)
    run_one(kit, scheduler, runner, "a", range(10), 3)
    saved = scheduler.kv.export_blocks()
    assert [entry.start for _, entry in saved] == sorted(entry.start for _, entry in saved)
    other, other_runner = kit.make_scheduler(), kit.make_runner(BLOCK)
    for block_id, entry in saved:
        target = other.kv.import_block(entry.start, entry.parent, entry.token_ids)
        for offset in range(BLOCK):
            if (block_id, offset) in runner.memory:
                other_runner.memory[target, offset] = runner.memory[block_id, offset]
    other.check_invariants()
    assert other.kv.import_block(saved[0][1].start, saved[0][1].parent, saved[0][1].token_ids) is None
    assert run_one(kit, other, other_runner, "b", range(10), 3).num_cached_tokens == 9
    with pytest.raises(ValueError, match="5 tokens"):
        other.kv.import_block(0, b"", (1, 2, 3, 4, 5))
