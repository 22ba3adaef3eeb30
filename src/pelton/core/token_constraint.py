"""`TokenConstraint`: which tokens a request may generate next. The sampler asks for a mask, then tells what it took.

It must not know how the allowed tokens are found; `structure/` has the one implementation.
"""

from __future__ import annotations

from typing import Any, Protocol

MaskRow = Any  # Any: NDArray[np.uint32], but core/ knows no numpy


class TokenConstraint(Protocol):
    """The state of one request's output: it begins before the first output token and moves with each `accept`.

    Both methods raise `StructureError` when the grammar has become too complex to go on: that ends the request, not
    the engine.
    """

    @property
    def is_complete(self) -> bool:
        """Whether only end tokens can follow."""
        ...

    def fill_mask(self, mask: MaskRow) -> None:
        """Write the whole row `mask` [at least ceil(vocab_size / 32)] u32: bit i of word i // 32 allows token i.

        May be called in another thread than `accept`, not at the same time.
        """
        ...

    def accept(self, token_id: int) -> None:
        """Take the next sampled token; called once for each, in order. End tokens are accepted where they may come."""
        ...
