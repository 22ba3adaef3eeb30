"""`TokenConstraint`: which tokens may come next in one request. What makes one lives in `structure`."""

from __future__ import annotations

from typing import Any, Protocol


class TokenConstraint(Protocol):
    """The state of one constrained request; advanced by `accept`, asked by `fill_mask`."""

    @property
    def is_complete(self) -> bool:
        """Whether only end tokens can follow."""

    def fill_mask(self, mask: Any) -> None:  # Any: an [ceil(vocab / 32)] u32 array; core does not know numpy
        """Write the whole row: bit i of word i // 32 is set for each allowed token i. May run in a worker thread."""

    def accept(self, token_id: int) -> None:
        """Take over a sampled token; called once for each, in order."""
