"""`HiddenStateProgram`: a model's pass without its output matrix, for embeddings.

It has a KV cache of its own, so that requests and their blocks are never touched. Entry point: `run`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pelton._native import KvCache, Program
from pelton.compute.batch import make_batch
from pelton.compute.recorder import record_program
from pelton.core.embedding import TextChunk
from pelton.core.errors import ConfigError
from pelton.loading.model import LoadedModel


class HiddenStateProgram:
    """Computes hidden states of texts, chunk by chunk. One caller at a time, and none while the model runs a step."""

    def __init__(self, model: LoadedModel, isa: str, kv_cache_dtype: str, num_blocks: int) -> None:
        """Record the program; memory for K/V is taken when it first runs."""
        self._program: Program = record_program(model.forward_hidden, model.pool, isa)
        self._model = model.config
        self._kv_cache_dtype = kv_cache_dtype
        self._num_blocks = num_blocks
        self._cache: KvCache | None = None

    def run(self, chunks: Sequence[TextChunk]) -> npt.NDArray[np.float32]:
        """Hidden states of all tokens of `chunks`, in their order: [T, hidden] f32, valid until the next run.

        K/V of a text's earlier chunks must be in its blocks. Raises `ConfigError` if the memory for K/V is not there.
        """
        if self._cache is None:
            self._cache = self._make_cache()
        sequences = [(list(chunk.token_ids), chunk.start, list(chunk.block_table)) for chunk in chunks]
        batch = make_batch(sequences, list(range(sum(len(chunk.token_ids) for chunk in chunks))))
        return self._program.run(
            self._cache, batch.token_ids, batch.cu_seqlens, batch.context_lens, batch.block_tables, batch.sample_rows
        )

    def drop_cache(self) -> None:
        """Give the memory of K/V back; the next `run` takes it again."""
        self._cache = None

    def _make_cache(self) -> KvCache:
        model = self._model
        try:
            return KvCache(model.num_layers, model.num_kv_heads, model.head_dim, self._num_blocks, self._kv_cache_dtype)
        except MemoryError as error:
            raise ConfigError(f"{self._num_blocks} KV blocks for embeddings exceed this machine's memory") from error
