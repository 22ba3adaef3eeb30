"""The block pool counts blocks and references exactly; misuse is an error, never a wrong number."""

from __future__ import annotations

import random

import pytest

from pelton.scheduling.block_pool import BlockPool


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3), (12, 3)]
)
def test_lengths_that_fill_their_last_block_take_no_further_block(num_tokens: int, num_blocks: int) -> None:
    assert BlockPool(8, 4).get_num_blocks_for(num_tokens) == num_blocks


def test_all_blocks_can_be_taken_once_and_no_more() -> None:
    pool = BlockPool(5, 4)
    assert sorted(pool.allocate(2) + pool.allocate(3)) == [0, 1, 2, 3, 4]
    assert pool.num_free_blocks == 0
    with pytest.raises(ValueError, match="1 blocks wanted, 0 free"):
        pool.allocate(1)
    pool.check_invariants()


def test_failed_allocation_takes_nothing() -> None:
    pool = BlockPool(3, 4)
    with pytest.raises(ValueError, match="4 blocks wanted"):
        pool.allocate(4)
    assert pool.num_free_blocks == 3


def test_block_released_twice_is_an_error_and_not_a_negative_count() -> None:
    pool = BlockPool(3, 4)
    blocks = pool.allocate(1)
    pool.release(blocks)
    with pytest.raises(ValueError, match="already free"):
        pool.release(blocks)
    assert pool.get_ref_count(blocks[0]) == 0
    pool.check_invariants()


def test_shared_block_is_free_only_after_its_last_release() -> None:
    pool = BlockPool(3, 4)
    blocks = pool.allocate(2)
    pool.share(blocks[:1])
    pool.release(blocks)
    assert pool.num_free_blocks == 2
    pool.release(blocks[:1])
    assert pool.num_free_blocks == 3
    with pytest.raises(ValueError, match="cannot be shared"):
        pool.share(blocks)


def test_released_blocks_are_used_again_before_untouched_ones() -> None:
    pool = BlockPool(100, 4)
    first = pool.allocate(3)
    pool.release(first)
    assert pool.allocate(3) == first


def test_random_use_never_loses_or_doubles_a_block() -> None:
    rng = random.Random(7)
    pool = BlockPool(20, 4)
    tables: list[list[int]] = []
    for _ in range(2000):
        if tables and rng.random() < 0.5:
            pool.release(tables.pop(rng.randrange(len(tables))))
        elif (num := rng.randint(0, 6)) <= pool.num_free_blocks:
            tables.append(pool.allocate(num))
        pool.check_invariants()
        owned = [block for table in tables for block in table]
        assert len(set(owned)) == len(owned) == 20 - pool.num_free_blocks


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 4), (4, 0), (-1, 4)])
def test_pool_without_slots_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="at least 1 each"):
        BlockPool(num_blocks, block_size)
