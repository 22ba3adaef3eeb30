"""`KvManager`: which KV blocks a request owns, shares or gets a copy of, and what stays cached after it.

It joins the pool (counts) and the prefix index (contents); it moves no memory itself but lists the block copies that
the next step must begin with. It must not decide who runs. Entry points: `admit`, `grow`, `commit`, `release`.

A request reuses whole cached blocks by sharing them, and tokens inside one more block by a copy of that block, because
it goes on writing there. A block is written by one request only: the one whose table it is in, past what is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pelton.core.cache_miss import CacheMiss, CacheMissReason
from pelton.core.request import Request
from pelton.scheduling.block_pool import BlockPool
from pelton.scheduling.invariants import check_kv
from pelton.scheduling.prefix_index import IndexEntry, PrefixIndex, compute_block_hash, compute_root
from pelton.scheduling.prompt_logprobs import misses_prompt_logprobs


@dataclass(slots=True)
class _Match:
    """What of a request's tokens is cached: whole blocks, then `num_copied` tokens at the start of block `source`."""

    block_ids: list[int]
    num_tokens: int
    source: int | None
    num_copied: int
    miss: CacheMiss | None

    def drop_copy(self) -> None:
        """Do without the copy: the reuse ends with the last whole block."""
        self.num_tokens -= self.num_copied
        self.source, self.num_copied = None, 0
        self.miss = CacheMiss(CacheMissReason.PARTIAL_BLOCK, self.num_tokens)


class KvManager:
    """Owner of the block pool, the prefix index and the block tables of all requests.

    Without `use_prefix_cache` nothing is found again, with one exception: requests with a leader share its prompt.
    """

    def __init__(self, num_blocks: int, block_size: int, *, use_prefix_cache: bool = True) -> None:
        self.index = PrefixIndex()
        self.pool = BlockPool(num_blocks, block_size, on_evict=self.index.evict)
        self.use_prefix_cache = use_prefix_cache
        self._block_size = block_size
        # Copies that no step has made yet, by the request they are for. Their sources hold a reference until then.
        self._copies: dict[Request, tuple[int, int]] = {}
        # Leaders whose blocks are indexed although the prefix cache is off, and how many requests may ask for them.
        self._leaders: dict[Request, int] = {}

    def reset(self) -> None:
        """Make all blocks free and forget what they held."""
        self._copies.clear()
        self._leaders.clear()
        self.index.clear()
        self.pool.reset()

    def clear_prefix_cache(self) -> None:
        """Forget what blocks hold: somebody else is going to write them. Running requests keep theirs."""
        for block_id, _ in list(self.index.list_blocks()):
            self.index.remove(block_id)
            self.pool.set_cached(block_id, False)

    def admit(self, request: Request, num_spare_blocks: int) -> bool:
        """Give a request blocks for all its tokens, cached ones where there are; False, and no change, without room.

        `num_spare_blocks` free ones must remain. Sets `block_table`, `num_computed_tokens` and, the first time,
        `num_cached_tokens` and `cache_miss`.
        """
        assert not request.block_table, f"{request.request_id} owns blocks already"
        match = self._find_cached(request)
        if not self._has_room(request, match, num_spare_blocks):
            if match.source is None:
                return False
            match.drop_copy()
            if not self._has_room(request, match, num_spare_blocks):
                return False
        self.pool.share(match.block_ids)
        if match.source is not None:
            # Before anything is allocated, which might evict it.
            self.pool.share((match.source,))
        num_shared = len(match.block_ids)
        own = self.pool.allocate(self.pool.get_num_blocks_for(request.num_tokens) - num_shared)
        request.block_table = match.block_ids + own
        request.num_computed_tokens = match.num_tokens
        request.num_indexed_blocks = num_shared
        if match.source is not None:
            self._copies[request] = (match.source, own[0])
        if request.first_scheduled_s is None:
            request.num_cached_tokens = match.num_tokens
            request.cache_miss = match.miss
        return True

    def grow(self, request: Request) -> bool:
        """Give a running request blocks for all tokens it has now; False, and no change, if too few are free."""
        num_missing = self.pool.get_num_blocks_for(request.num_tokens) - len(request.block_table)
        if num_missing > 0:
            if num_missing > self.pool.num_free_blocks:
                return False
            request.block_table += self.pool.allocate(num_missing)
        return True

    def commit(self, request: Request) -> None:
        """Enter newly computed blocks into the index: full ones, and the last one when the prompt is complete."""
        if not self._is_indexed(request):
            return
        self._index_full_blocks(request)
        if request.num_computed_tokens == len(request.prompt_token_ids):
            self._index_last_block(request)

    def join_leader(self, request: Request) -> None:
        """Let a new request find the blocks of its leader, if it has one; needed only while the cache is off."""
        leader = request.leader
        if self.use_prefix_cache or leader is None:
            return
        self._leaders[leader] = self._leaders.get(leader, 0) + 1
        if leader.block_table:
            self._index_computed(leader)

    def leave_leader(self, request: Request) -> None:
        """End what `join_leader` began: the request is finished."""
        leader = request.leader
        if self.use_prefix_cache or leader is None:
            return
        self._leaders[leader] -= 1
        if self._leaders[leader] == 0:
            del self._leaders[leader]

    def release(self, request: Request) -> None:
        """Take a request's blocks back; what it computed stays cached until the blocks are needed."""
        self._drop_copy(request)
        if request.block_table:
            if self._is_indexed(request):
                self._index_computed(request)
            self.pool.release(request.block_table)
            # A new list: a plan may still hold the old one.
            request.block_table = []
        request.num_indexed_blocks = 0

    def list_copies(self) -> tuple[tuple[int, int], ...]:
        """(from, to) of the block copies that the next step must make first, in order."""
        return tuple(self._copies.values())

    def finish_copies(self) -> None:
        """A step has made the copies: let their sources go."""
        for source, _ in self._copies.values():
            self.pool.release([source])
        self._copies.clear()

    def export_blocks(self) -> list[tuple[int, IndexEntry]]:
        """All blocks with known content, each after those it follows; for saving them."""
        return sorted(self.index.list_blocks(), key=lambda item: item[1].start)

    def import_block(self, start: int, parent: bytes, token_ids: tuple[int, ...]) -> int | None:
        """Take a block for saved content, to be written by the caller at once; None without room or need.

        `start` and `parent` are what `export_blocks` gave. Only blocks that hold nothing of worth are taken. ValueError
        for a number of tokens that no block holds.
        """
        if not 1 <= len(token_ids) <= self._block_size or start < 0 or start % self._block_size:
            raise ValueError(f"{len(token_ids)} tokens from position {start} are not the content of a block")
        if self.pool.num_free_blocks == self.pool.num_cached_blocks:
            return None
        block_hash = compute_block_hash(parent, token_ids) if len(token_ids) == self._block_size else None
        (block_id,) = self.pool.allocate(1)
        is_new = self.index.add(block_id, IndexEntry(start, parent, token_ids, block_hash))
        self.pool.set_cached(block_id, is_new)
        self.pool.release([block_id])
        return block_id if is_new else None

    def check_invariants(self, running: Sequence[Request]) -> None:
        """AssertionError if pool, index, copies and the tables of `running` contradict each other. For tests."""
        check_kv(self.pool, self.index, running, self._copies)

    def _find_cached(self, request: Request) -> _Match:
        if not self._can_reuse(request):
            return _Match([], 0, None, 0, CacheMiss(CacheMissReason.OFF, 0))
        size = self._block_size
        # The last token must be computed, or there would be no logits.
        num_wanted = request.num_tokens - 1
        parent = self._get_root(request)
        block_ids: list[int] = []
        start = 0
        while start + size <= num_wanted:
            block_hash = self._get_block_hash(request, len(block_ids), parent)
            block_id = self.index.find_full(block_hash, tuple(request.get_token_ids(start, start + size)))
            if block_id is None:
                break
            block_ids.append(block_id)
            parent = block_hash
            start += size
        rest = tuple(request.get_token_ids(start, min(start + size, num_wanted)))
        source, num_copied = self.index.find_partial(parent, rest) or (None, 0)
        miss = None
        if start + num_copied < num_wanted:
            miss = self._explain_miss(request, parent, start, source, num_copied)
        return _Match(block_ids, start + num_copied, source, num_copied, miss)

    def _explain_miss(
        self, request: Request, parent: bytes, start: int, source: int | None, num_copied: int
    ) -> CacheMiss:
        position = start + num_copied
        tokens = tuple(request.get_token_ids(start, start + self._block_size))
        is_full = len(tokens) == self._block_size
        block_hash = self._get_block_hash(request, start // self._block_size, parent) if is_full else None
        if self.index.was_evicted(parent, tokens, block_hash):
            return CacheMiss(CacheMissReason.EVICTED, position)
        if position == 0:
            reason = CacheMissReason.SALT if self.index.has_first_block(tokens) else CacheMissReason.FIRST_TIME
            return CacheMiss(reason, 0)
        if source is None:
            has_diverged = self.index.has_children(parent)
        else:
            has_diverged = len(self.index.get_entry(source).token_ids) > num_copied
        return CacheMiss(CacheMissReason.DIVERGED if has_diverged else CacheMissReason.FIRST_TIME, position)

    def _has_room(self, request: Request, match: _Match, num_spare_blocks: int) -> bool:
        num_new = self.pool.get_num_blocks_for(request.num_tokens) - len(match.block_ids)
        # Cached blocks without references count as free until they are taken.
        num_revived = sum(1 for block_id in match.block_ids if self.pool.get_ref_count(block_id) == 0)
        if match.source is not None and self.pool.get_ref_count(match.source) == 0:
            num_revived += 1
        return num_new + num_revived + num_spare_blocks <= self.pool.num_free_blocks

    def _can_reuse(self, request: Request) -> bool:
        # Log-probabilities of a prompt come from computing it.
        return (self.use_prefix_cache or request.leader is not None) and not misses_prompt_logprobs(request)

    def _is_indexed(self, request: Request) -> bool:
        return self.use_prefix_cache or request in self._leaders

    def _get_root(self, request: Request) -> bytes:
        if self.use_prefix_cache:
            return compute_root("salt", request.cache_salt)
        leader = request if request.leader is None else request.leader
        return compute_root("leader", str(leader.arrival_number))

    def _get_block_hash(self, request: Request, index: int, parent: bytes) -> bytes:
        if index == len(request.block_hashes):
            start = index * self._block_size
            token_ids = request.get_token_ids(start, start + self._block_size)
            request.block_hashes.append(compute_block_hash(parent, token_ids))
        return request.block_hashes[index]

    def _index_computed(self, request: Request) -> None:
        self._index_full_blocks(request)
        self._index_last_block(request)

    def _index_full_blocks(self, request: Request) -> None:
        for index in range(request.num_indexed_blocks, request.num_computed_tokens // self._block_size):
            parent = request.block_hashes[index - 1] if index else self._get_root(request)
            block_hash = self._get_block_hash(request, index, parent)
            self._index_block(request, index, self._block_size, parent, block_hash)
            request.num_indexed_blocks = index + 1

    def _index_last_block(self, request: Request) -> None:
        num_full, num_tokens = divmod(request.num_computed_tokens, self._block_size)
        if num_tokens > 0:
            parent = request.block_hashes[num_full - 1] if num_full else self._get_root(request)
            self._index_block(request, num_full, num_tokens, parent, None)

    def _index_block(self, request: Request, index: int, num_tokens: int, parent: bytes, hash_: bytes | None) -> None:
        start = index * self._block_size
        entry = IndexEntry(start, parent, tuple(request.get_token_ids(start, start + num_tokens)), hash_)
        block_id = request.block_table[index]
        self.pool.set_cached(block_id, self.index.add(block_id, entry))

    def _drop_copy(self, request: Request) -> None:
        copy = self._copies.pop(request, None)
        if copy is not None:
            self.pool.release([copy[0]])
            # The copy was never made, so what it would have held is not there.
            request.num_computed_tokens -= request.num_computed_tokens % self._block_size
