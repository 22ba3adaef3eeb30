"""`GrammarConstraint`: the `TokenConstraint` over one llguidance matcher. It must not know what the grammar says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pelton.core.errors import StructureError

if TYPE_CHECKING:
    from llguidance import LLMatcher


DEAD_END = "NoExtension"  # how llguidance's error begins when the grammar allows nothing more


class GrammarConstraint:
    """Follows the output of one request through a grammar. `vocab_size`: tokens the masks speak of."""

    __slots__ = ("_matcher", "_num_words", "_vocab_size")

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._num_words = (vocab_size + 31) // 32

    @property
    def is_complete(self) -> bool:
        """Whether only end tokens can follow."""
        return self._matcher.is_stopped() and self._matcher.is_accepting()

    def fill_mask(self, mask: NDArray[np.uint32]) -> None:
        """Write the row `mask` [at least ceil(vocab_size / 32)] u32, C-contiguous; the GIL is released meanwhile.

        Raises `StructureError` if the grammar has become too complex, or if no token at all can follow.
        """
        if mask.dtype != np.uint32 or mask.ndim != 1 or len(mask) < self._num_words or not mask.flags.c_contiguous:
            raise ValueError(f"mask is {mask.dtype} {mask.shape}; it must be u32 [{self._num_words}] or longer")
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, self._num_words * 4)
        mask[self._num_words :] = 0
        self._check()

    def accept(self, token_id: int) -> None:
        """Take the next token. Raises `StructureError` if it is not allowed, or the grammar too complex."""
        if not 0 <= token_id < self._vocab_size:
            raise StructureError("structure", f"token {token_id}", f"token ids 0 to {self._vocab_size - 1}")
        self._matcher.consume_token(token_id)
        self._check()

    def _check(self) -> None:
        if not self._matcher.is_error():
            return
        found = describe_error(self._matcher.get_error())
        if found.startswith(DEAD_END):
            raise StructureError("structure", "a dead end: no text can follow", "structures that some text satisfies")
        raise StructureError("structure", found, "output within the grammar and the limits of the compiler")


def describe_error(message: str) -> str:
    """Return what an error of llguidance says, without its state dump, as one line."""
    lines = message.partition("\n<")[0].splitlines()
    return " ".join(line.strip() for line in lines if line.strip(" ^"))[:300]
