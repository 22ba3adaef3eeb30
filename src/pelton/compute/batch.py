"""`Batch`: the arrays of one step, as every executor takes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Batch:
    """T tokens of S sequences, one sequence after the other; R rows are sampled. All int32.

    token_ids [T]; cu_seqlens [S+1], first token of each sequence, then T; context_lens [S], this step's tokens
    included; block_tables [S, B], KV blocks in order; sample_rows [R], indices into the T tokens.
    Positions and slots follow: token t of sequence s sits at context_lens[s] - (cu_seqlens[s+1] - t).
    """

    token_ids: IntArray
    cu_seqlens: IntArray
    context_lens: IntArray
    block_tables: IntArray
    sample_rows: IntArray

    @property
    def positions(self) -> IntArray:
        """Position of every token in its sequence, [T]."""
        ends = np.repeat(self.cu_seqlens[1:], np.diff(self.cu_seqlens))
        contexts = np.repeat(self.context_lens, np.diff(self.cu_seqlens))
        return (contexts - (ends - np.arange(len(self.token_ids)))).astype(np.int32)


def make_batch(sequences: list[tuple[list[int], int, list[int]]], sample_rows: list[int] | None = None) -> Batch:
    """Build a Batch from (token ids, position of the first, block table) per sequence.

    `sample_rows` defaults to the last token of every sequence.
    """
    lens = [len(ids) for ids, _, _ in sequences]
    cu_seqlens = np.zeros(len(sequences) + 1, np.int32)
    np.cumsum(lens, out=cu_seqlens[1:])
    tables = np.zeros((len(sequences), max(len(table) for _, _, table in sequences)), np.int32)
    for row, (_, _, table) in enumerate(sequences):
        tables[row, : len(table)] = table
    rows = [int(end) - 1 for end in cu_seqlens[1:]] if sample_rows is None else sample_rows
    return Batch(
        token_ids=np.array([i for ids, _, _ in sequences for i in ids], np.int32),
        cu_seqlens=cu_seqlens,
        context_lens=np.array([start + len(ids) for ids, start, _ in sequences], np.int32),
        block_tables=tables,
        sample_rows=np.array(rows, np.int32),
    )
