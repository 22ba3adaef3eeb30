"""Pictures of the KV cache against pools whose blocks were handed out by hand."""

from __future__ import annotations

import pytest

from pelton.engine.kv_picture import list_runs
from pelton.scheduling.block_pool import BlockPool


def test_a_new_pool_is_one_run_of_free_blocks() -> None:
    assert list_runs(BlockPool(7, 4)) == [("free", 7)]


def test_own_shared_cached_and_free_blocks_are_told_apart() -> None:
    pool = BlockPool(8, 4)
    assert pool.allocate(6) == [0, 1, 2, 3, 4, 5]
    pool.share([1, 2])
    pool.set_cached(5, True)
    pool.release([4, 5])
    assert list_runs(pool) == [("own", 1), ("shared", 2), ("own", 1), ("free", 1), ("cached", 1), ("free", 2)]


def test_blocks_of_one_request_are_marked_and_those_it_lost_are_not() -> None:
    pool = BlockPool(6, 4)
    pool.allocate(4)
    pool.share([0])
    pool.release([3])
    assert list_runs(pool, [0, 1, 3]) == [("request_shared", 1), ("request", 1), ("own", 1), ("free", 3)]


@pytest.mark.parametrize("num_blocks", [1, 5, 4096])
def test_runs_cover_every_block_once(num_blocks: int) -> None:
    pool = BlockPool(num_blocks, 1)
    taken = pool.allocate(num_blocks)
    pool.release(taken[::2])
    runs = list_runs(pool)
    assert sum(length for _, length in runs) == num_blocks
    assert [use for use, length in runs for _ in range(length)] == ["free" if i % 2 == 0 else "own" for i in taken]
