"""`BlockPool`: hands out the numbers of KV cache blocks and takes them back.

It knows counts and block ids only: no requests, no tokens, no memory. Entry point: `BlockPool.allocate`.
"""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """A fixed set of blocks 0..num_blocks-1, each with `block_size` token slots and a reference count.

    `allocate` gives a block one reference, `share` adds one (a prefix used twice), `release` takes one away; a block
    without references is free.
    """

    __slots__ = ("_free", "_ref_counts", "block_size", "num_blocks")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks is {num_blocks}, block_size is {block_size}; allowed: at least 1 each")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.reset()

    def reset(self) -> None:
        """Make every block free, whatever happened before."""
        self._ref_counts = [0] * self.num_blocks
        # A stack: the block freed last is used first, so that a small load touches little memory.
        self._free = list(range(self.num_blocks - 1, -1, -1))

    @property
    def num_free_blocks(self) -> int:
        """Blocks that `allocate` can hand out now."""
        return len(self._free)

    @property
    def num_slots(self) -> int:
        """Token slots of all blocks together."""
        return self.num_blocks * self.block_size

    def get_num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens fill; 8 tokens fill 2 blocks of 4, 9 tokens fill 3."""
        return -(-num_tokens // self.block_size)

    def allocate(self, num_blocks: int) -> list[int]:
        """Take `num_blocks` free blocks, each with one reference. ValueError, and no change, if there are fewer."""
        if num_blocks > len(self._free):
            raise ValueError(f"{num_blocks} blocks wanted, {len(self._free)} free")
        block_ids = [self._free.pop() for _ in range(num_blocks)]
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def share(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each block. ValueError if one is free."""
        for block_id in block_ids:
            if self._ref_counts[block_id] < 1:
                raise ValueError(f"block {block_id} is free and cannot be shared")
            self._ref_counts[block_id] += 1

    def release(self, block_ids: list[int]) -> None:
        """Take one reference from each block of a block table. ValueError if one is already free."""
        # Backwards, so that the first block of the table lies on top of the stack.
        for block_id in reversed(block_ids):
            if self._ref_counts[block_id] < 1:
                raise ValueError(f"block {block_id} is released but already free")
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._free.append(block_id)

    def get_ref_count(self, block_id: int) -> int:
        """References held on a block; 0 means free."""
        return self._ref_counts[block_id]

    def check_invariants(self) -> None:
        """AssertionError unless exactly the blocks without references are on the free stack, once each."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        assert min(self._ref_counts) >= 0, "a reference count is negative"
        without_references = {b for b, count in enumerate(self._ref_counts) if count == 0}
        assert free == without_references, f"free {sorted(free)}, without references {sorted(without_references)}"
