"""`HiddenStateProgram`: a model's pass without its output matrix, for embeddings.

It has a KV cache of its own, so that requests and their blocks are never touched. Entry point: `run`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pelton._native import KV_BLOCK_TOKENS, KvCache, Program
from pelton.compute.batch import make_batch
from pelton.compute.recorder import record_program
from pelton.core.config import EngineConfig
from pelton.core.embedding import TextChunk
from pelton.core.errors import ConfigError
from pelton.loading.model import LoadedModel

# Short texts are computed together as far as there are blocks for them.
_MIN_NUM_BLOCKS = 128


class HiddenStateProgram:
    """Computes hidden states of texts, chunk by chunk. One caller at a time, and none while the model runs a step.

    `num_blocks` KV blocks are for the texts that are being computed: a text of full length fits, or many short ones,
    and never more than requests have (`max_num_blocks`).
    """

    def __init__(self, model: LoadedModel, isa: str, config: EngineConfig, max_num_blocks: int) -> None:
        """Take nothing yet: the program is recorded, and memory for K/V taken, when it first runs."""
        longest = -(-(config.max_context or model.config.max_position_embeddings) // KV_BLOCK_TOKENS)
        self.num_blocks = min(max_num_blocks, max(longest, _MIN_NUM_BLOCKS))
        self._model = model
        self._isa = isa
        self._kv_cache_dtype = config.kv_cache_dtype
        self._program: Program | None = None
        self._cache: KvCache | None = None

    def run(self, chunks: Sequence[TextChunk]) -> npt.NDArray[np.float32]:
        """Hidden states of all tokens of `chunks`, in their order: [T, hidden] f32, valid until the next run.

        K/V of a text's earlier chunks must be in its blocks. Raises `ConfigError` if the memory for K/V is not there.
        """
        if self._program is None:
            self._program = record_program(self._model.forward_hidden, self._model.pool, self._isa)
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
        model = self._model.config
        try:
            return KvCache(model.num_layers, model.num_kv_heads, model.head_dim, self.num_blocks, self._kv_cache_dtype)
        except MemoryError as error:
            raise ConfigError(f"{self.num_blocks} KV blocks for embeddings exceed this machine's memory") from error
