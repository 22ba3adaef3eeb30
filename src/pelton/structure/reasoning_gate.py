"""`ReasoningGate`: a constraint that begins after a model's thoughts, which stay free text.

Models that think before they answer need it: a structure from the first token on would forbid the thoughts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pelton.core.token_constraint import TokenConstraint
from pelton.structure.vocabulary import TokenSource
from pelton.text.reasoning import ReasoningStart


class ReasoningGate:
    """Allows anything but end tokens until the thoughts are closed, then what `inner` allows.

    If the prompt has not opened the thoughts, the first token decides: the opening marker (if it is one token of its
    own) or the beginning of what `inner` wants.
    """

    def __init__(self, inner: TokenConstraint, tokenizer: TokenSource, start: ReasoningStart) -> None:
        self._inner = inner
        self._tokenizer = tokenizer
        self._end = start.style.end.encode()
        self._is_thinking = start.is_open
        ids = tokenizer.encode(start.style.start, add_special=False, parse_special=True)
        self._start_id = ids[0] if len(ids) == 1 and not start.is_open else None
        self._tail = b""

    @property
    def is_complete(self) -> bool:
        """Whether only end tokens can follow."""
        return not self._is_thinking and self._start_id is None and self._inner.is_complete

    def fill_mask(self, mask: NDArray[np.uint32]) -> None:
        """Write the whole row, see `TokenConstraint`."""
        if not self._is_thinking:
            self._inner.fill_mask(mask)
            if self._start_id is not None:
                mask[self._start_id // 32] |= np.uint32(1 << self._start_id % 32)
            return
        vocab_size = self._tokenizer.vocab_size
        bits = np.zeros(len(mask) * 32, np.uint8)
        bits[:vocab_size] = 1
        bits[list(self._tokenizer.eos_token_ids)] = 0
        mask[:] = np.packbits(bits, bitorder="little").view(np.uint32)

    def accept(self, token_id: int) -> None:
        """Take the next token, see `TokenConstraint`."""
        if self._is_thinking:
            tail = self._tail + self._tokenizer.token_bytes(token_id)
            self._is_thinking = self._end not in tail
            self._tail = tail[-len(self._end) :]
        elif token_id == self._start_id:
            self._is_thinking, self._start_id = True, None
        else:
            self._start_id = None
            self._inner.accept(token_id)
