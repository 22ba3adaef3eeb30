"""What every KV block is used for at this moment, for pictures of the cache. Start at `list_runs`.

It reads copies of the pool's tables, so it may run beside a step; a block that changes hands meanwhile is shown in its
old or its new place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from pelton.scheduling.block_pool import BlockPool

# own: one request's; shared: of several; request, request_shared: the same for the request that was asked for.
BlockUse = Literal["free", "cached", "own", "shared", "request", "request_shared"]
_USES: tuple[BlockUse, ...] = ("free", "cached", "own", "shared", "request", "request_shared")
_OWN = _USES.index("own")
_TO_REQUEST = _USES.index("request") - _OWN


def list_runs(pool: BlockPool, request_blocks: Sequence[int] = ()) -> list[tuple[BlockUse, int]]:
    """Uses of all blocks in their order, each with the number of neighbours that have it too.

    `request_blocks` are those of the request to be told apart; one that has gone meanwhile is not.
    """
    ref_counts, is_cached = pool.copy_state()
    counts = np.array(ref_counts, np.int64)
    uses = np.where(counts > 0, _OWN + (counts > 1), np.frombuffer(is_cached, np.uint8))
    blocks = np.unique(np.array(request_blocks, np.int64))
    uses[blocks[uses[blocks] >= _OWN]] += _TO_REQUEST
    starts = np.concatenate(([0], np.flatnonzero(np.diff(uses)) + 1))
    lengths = np.diff(np.append(starts, len(uses)))
    return [(_USES[use], int(length)) for use, length in zip(uses[starts], lengths, strict=True)]
