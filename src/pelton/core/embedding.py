"""What is asked of embeddings, and the pieces of texts that an executor computes for them. Plain data.

Start at `EmbeddingParams`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pelton.core.fields import option, validate_options

POOLINGS = ("mean", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingParams:
    """How the hidden states of a text's tokens become one vector; validated on construction."""

    pooling: str = option("mean", "Mean of all tokens' hidden states, or the last token's.", choices=POOLINGS)
    normalize: bool = option(True, "Scale the vector to length 1.")

    def __post_init__(self) -> None:
        validate_options(self)


@dataclass(frozen=True, slots=True)
class TextChunk:
    """Tokens of one text to compute: the first sits at position `start`; `block_table` holds the text's K/V."""

    token_ids: tuple[int, ...]
    start: int
    block_table: Sequence[int]
