"""`BlockPool`: hands out the numbers of KV cache blocks and takes them back.

It knows counts and block ids only: no requests, no tokens, no memory. A free block may be marked as cached: it holds
K/V that somebody may ask for again. Free blocks that are not cached are handed out first; then cached ones, those
released longest ago first. Entry point: `BlockPool.allocate`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable


class BlockPool:
    """A fixed set of blocks 0..num_blocks-1, each with `block_size` token slots and a reference count.

    `allocate` gives a block one reference, `share` adds one (a prefix used twice), `release` takes one away; a block
    without references is free. `on_evict(block_id)` is called when a cached block is handed out for something else.
    """

    __slots__ = ("_cached_free", "_free", "_is_cached", "_on_evict", "_ref_counts", "block_size", "num_blocks")

    def __init__(self, num_blocks: int, block_size: int, on_evict: Callable[[int], None] | None = None) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks is {num_blocks}, block_size is {block_size}; allowed: at least 1 each")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._on_evict = on_evict
        self.reset()

    def reset(self) -> None:
        """Make every block free and not cached, whatever happened before."""
        self._ref_counts = [0] * self.num_blocks
        self._is_cached = bytearray(self.num_blocks)
        # A stack: the block freed last is used first, so that a small load touches little memory.
        self._free = list(range(self.num_blocks - 1, -1, -1))
        # Oldest first. A dict would walk over all the keys deleted at its front.
        self._cached_free: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free_blocks(self) -> int:
        """Blocks that `allocate` can hand out now, cached ones included."""
        return len(self._free) + len(self._cached_free)

    @property
    def num_cached_blocks(self) -> int:
        """Free blocks that are marked as cached."""
        return len(self._cached_free)

    @property
    def num_slots(self) -> int:
        """Token slots of all blocks together."""
        return self.num_blocks * self.block_size

    def get_num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens fill; 8 tokens fill 2 blocks of 4, 9 tokens fill 3."""
        return -(-num_tokens // self.block_size)

    def allocate(self, num_blocks: int) -> list[int]:
        """Take `num_blocks` free blocks, each with one reference. ValueError, and no change, if there are fewer."""
        if num_blocks > self.num_free_blocks:
            raise ValueError(f"{num_blocks} blocks wanted, {self.num_free_blocks} free")
        num_fresh = min(num_blocks, len(self._free))
        block_ids = [self._free.pop() for _ in range(num_fresh)]
        for _ in range(num_blocks - num_fresh):
            block_id, _none = self._cached_free.popitem(last=False)
            self._is_cached[block_id] = False
            block_ids.append(block_id)
            if self._on_evict is not None:
                self._on_evict(block_id)
        for block_id in block_ids:
            self._ref_counts[block_id] = 1
        return block_ids

    def share(self, block_ids: Iterable[int]) -> None:
        """Add one reference to each block. ValueError if one is free and not cached: nobody can know its content."""
        for block_id in block_ids:
            if self._ref_counts[block_id] == 0:
                if not self._is_cached[block_id]:
                    raise ValueError(f"block {block_id} is free and cannot be shared")
                del self._cached_free[block_id]
            self._ref_counts[block_id] += 1

    def release(self, block_ids: list[int]) -> None:
        """Take one reference from each block of a block table. ValueError if one is already free."""
        # Backwards: the first block of the table then lies on top of the stack, and of cached blocks the last goes
        # first, without which the ones before are still worth something.
        for block_id in reversed(block_ids):
            if self._ref_counts[block_id] < 1:
                raise ValueError(f"block {block_id} is released but already free")
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                if self._is_cached[block_id]:
                    self._cached_free[block_id] = None
                else:
                    self._free.append(block_id)

    def set_cached(self, block_id: int, is_cached: bool) -> None:
        """Mark a block as holding something worth keeping, or no longer; a free one changes its place in the queue."""
        if bool(self._is_cached[block_id]) == is_cached:
            return
        self._is_cached[block_id] = is_cached
        if self._ref_counts[block_id] > 0:
            return
        if is_cached:
            self._free.remove(block_id)
            self._cached_free[block_id] = None
        else:
            del self._cached_free[block_id]
            self._free.append(block_id)

    def get_ref_count(self, block_id: int) -> int:
        """References held on a block; 0 means free."""
        return self._ref_counts[block_id]

    def is_cached(self, block_id: int) -> bool:
        """Whether the block is marked as cached."""
        return bool(self._is_cached[block_id])

    def copy_state(self) -> tuple[list[int], bytes]:
        """References and marks (1: cached) of all blocks in their order; any thread may ask for these copies."""
        return self._ref_counts.copy(), bytes(self._is_cached)

    def check_invariants(self) -> None:
        """AssertionError unless exactly the blocks without references are in the two free lists, once each."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        assert free.isdisjoint(self._cached_free), "a block is in both free lists"
        assert min(self._ref_counts) >= 0, "a reference count is negative"
        without_references = {b for b, count in enumerate(self._ref_counts) if count == 0}
        all_free = free.union(self._cached_free)
        assert all_free == without_references, f"free {sorted(all_free)}, without references {without_references}"
        assert not any(self._is_cached[b] for b in free), "a cached block is in the list of the others"
        assert all(self._is_cached[b] for b in self._cached_free), "a block that is not cached is in their list"
