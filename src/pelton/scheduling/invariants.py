"""What must always be true of the tables of scheduler and KV manager. For tests, and slow: everything is looked at.

Entry points: `check_requests` and `check_kv`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pelton.core.request import Request, RequestStatus
from pelton.scheduling.block_pool import BlockPool
from pelton.scheduling.prefix_index import PrefixIndex


def check_requests(unfinished: Iterable[Request], running: Sequence[Request]) -> int:
    """AssertionError if a request's status, tokens or blocks do not fit where it is; return how many were preempted."""
    running_set = set(running)
    num_preempted = 0
    for request in unfinished:
        if request in running_set:
            assert request.status is RequestStatus.RUNNING, f"{request.request_id} runs as {request.status}"
            assert request.num_computed_tokens < request.num_tokens, f"{request.request_id} has nothing to compute"
            continue
        num_preempted += request.num_preemptions > 0
        assert request.status is RequestStatus.WAITING, f"{request.request_id} waits as {request.status}"
        assert not request.block_table, f"{request.request_id} waits and owns blocks"
        assert request.num_computed_tokens == 0, f"{request.request_id} waits with computed tokens"
    return num_preempted


def check_kv(
    pool: BlockPool, index: PrefixIndex, running: Sequence[Request], copies: Mapping[Request, tuple[int, int]]
) -> None:
    """AssertionError if pool, index, block tables of `running` and pending `copies` contradict each other."""
    pool.check_invariants()
    index.check_invariants()
    uses = Counter(block_id for request in running for block_id in request.block_table)
    pins = Counter(source for source, _ in copies.values())
    for block_id in range(pool.num_blocks):
        count = pool.get_ref_count(block_id)
        assert count == uses[block_id] + pins[block_id], f"block {block_id}: {count} references, {uses[block_id]} uses"
        assert pool.is_cached(block_id) == (block_id in index), f"block {block_id}: pool and index differ"
    for request in running:
        _check_table(pool, index, request, uses)
    for request, (source, target) in copies.items():
        assert target == request.block_table[request.num_computed_tokens // pool.block_size], "a copy to nowhere"
        assert source != target


def _check_table(pool: BlockPool, index: PrefixIndex, request: Request, uses: Counter[int]) -> None:
    num_owned = len(request.block_table)
    num_needed = pool.get_num_blocks_for(request.num_computed_tokens)
    num_known = pool.get_num_blocks_for(request.num_tokens)
    assert num_needed <= num_owned <= num_known, f"{request.request_id} owns {num_owned} blocks"
    for number, block_id in enumerate(request.block_table):
        start = number * pool.block_size
        if start + pool.block_size > request.num_computed_tokens:
            assert uses[block_id] == 1, f"block {block_id} is written by {request.request_id} and owned by others"
        if block_id in index:
            entry = index.get_entry(block_id)
            stop = start + len(entry.token_ids)
            assert entry.start == start, f"block {block_id} is known for another position"
            assert stop <= request.num_computed_tokens, f"block {block_id} is known for what is not computed"
            assert list(entry.token_ids) == request.get_token_ids(start, stop), f"block {block_id}: other tokens"
