"""`LengthBound`: how many tokens a text must have at least, found in about a millisecond per megabyte.

With it a text that cannot fit the context is refused before it is tokenised, which takes seconds for a megabyte. The
bound is sure: no token of the vocabulary holds more than so many letters (digits, punctuation marks), so a text with
many of them needs many tokens. Knows bytes only. Start at `LengthBound.count_least_tokens`.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CLASSES = tuple(text.encode() for text in (string.ascii_letters, string.digits, string.punctuation))
_NON_ASCII = bytes(range(0x80, 0x100))


class LengthBound:
    """The bound for a vocabulary, given as all its tokens, control tokens as they are written; only ASCII counts.

    Normalisation must not drop ASCII characters, but may compose one with characters that follow (Unicode NFC).
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        # Here and not above: this is for long texts, and NumPy takes as long to load as the rest of `import pelton`.
        import numpy as np

        known = {token for token in tokens if len(token) == 1}
        data = np.frombuffer(b"".join(tokens), np.uint8)
        ends = np.cumsum(np.fromiter(map(len, tokens), np.int64, len(tokens)))
        self._limits: list[tuple[bytes, int]] = []
        for characters in _CLASSES:
            # A character without a token of its own may become one "unknown" token for a whole run of them.
            if all(bytes([character]) in known for character in characters):
                self._limits.append((characters, _find_most(data, ends, characters)))

    def count_least_tokens(self, utf8: bytes) -> int:
        """Tokens that the text needs at least, special tokens spelled out in it counted as such."""
        # Each character beyond ASCII may have been composed with one before it.
        num_composed = _count(utf8, _NON_ASCII)
        bounds = (-(-(_count(utf8, characters) - num_composed) // most) for characters, most in self._limits)
        return max(0, *bounds, 0)


def _find_most(data: NDArray[np.uint8], ends: NDArray[np.int64], characters: bytes) -> int:
    """Most of `characters` in one of the tokens that `data` holds one after the other, up to `ends`."""
    import numpy as np

    is_one = np.zeros(256, np.int64)
    is_one[list(characters)] = 1
    counts = np.concatenate(([0], np.cumsum(is_one[data])))
    return int(np.diff(counts[ends], prepend=0).max())


def _count(data: bytes, characters: bytes) -> int:
    return len(data) - len(data.translate(None, characters))
