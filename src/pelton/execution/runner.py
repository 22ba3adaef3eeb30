"""`ModelRunner`: one native call and one sampling call per step.

Entry point: `ModelRunner.run`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pelton._native import KV_BLOCK_TOKENS, KvCache, Program
from pelton.compute.native import choose_isa
from pelton.compute.recorder import record_program
from pelton.core.config import EngineConfig, read_environment
from pelton.core.errors import ConfigError, InvalidParameterError
from pelton.core.model_config import ModelConfig
from pelton.core.step_cost import NodeTime
from pelton.core.step_plan import SampledToken, StepPlan, StepResult
from pelton.execution.kv_size import choose_num_blocks, read_free_bytes
from pelton.loading.model import LoadedModel
from pelton.sampling.logprobs import log_softmax_at
from pelton.sampling.row import SamplingRow
from pelton.sampling.sampler import Sampler

IntArray = npt.NDArray[np.int32]

# Rows of logits computed at once while scoring a text: bounds their memory (vocabulary x 4 bytes each).
_SCORE_CHUNK = 64


class ModelRunner:
    """Runs the steps of one model. One caller at a time."""

    def __init__(self, model: LoadedModel, config: EngineConfig) -> None:
        """Record the model's program and reserve its KV cache. Raises `ConfigError` for what this machine lacks."""
        self.isa = choose_isa(config.isa or read_environment().isa)
        self.num_threads = model.pool.num_threads
        self.block_size = KV_BLOCK_TOKENS
        self._config = model.config
        self._program: Program = record_program(model.forward, model.pool, self.isa)
        self._cache = _make_cache(model.config, config)
        self.num_blocks = self._cache.num_blocks
        self.kv_bytes_per_block = self._cache.bytes_per_block
        # A model may have more rows of logits than tokens: padding that must never be drawn.
        self._sampler = Sampler(model.tokenizer.vocab_size)

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return self._config.vocab_size

    def run(self, plan: StepPlan) -> StepResult:
        """Compute the plan's tokens and sample a token for each request that needs one."""
        start_s = time.perf_counter()
        for source, target in plan.block_copies:
            self._cache.copy_block(source, target)
        batch = _build_batch(plan)
        logits = self._program.run(self._cache, *batch)
        model_end_s = time.perf_counter()
        sampled = self._sample(plan, logits)
        return StepResult(sampled, model_end_s - start_s, time.perf_counter() - model_end_s)

    def _sample(self, plan: StepPlan, logits: npt.NDArray[np.float32]) -> dict[str, SampledToken]:
        requests = [s.request for s in plan.scheduled if s.needs_sample]
        if not requests:
            return {}
        if self._sampler.vocab_size != self.vocab_size:
            logits = np.ascontiguousarray(logits[:, : self._sampler.vocab_size])
        tokens = self._sampler.sample(logits, [SamplingRow.from_request(r) for r in requests])
        return {request.request_id: token for request, token in zip(requests, tokens, strict=True)}

    def score(self, token_ids: Sequence[int], first: int = 1) -> npt.NDArray[np.float64]:
        """Natural-log probability of token_ids[i] given all before it, for i from `first` to the end.

        Uses KV blocks from 0 on, so no request may be running. Raises `InvalidParameterError` for too few tokens or
        more than the KV cache holds.
        """
        if not 1 <= first < len(token_ids):
            raise InvalidParameterError("first", first, f"1 to {len(token_ids) - 1}, positions with a token before")
        num_blocks = -(-len(token_ids) // self.block_size)
        if num_blocks > self.num_blocks:
            limit = self.num_blocks * self.block_size
            raise InvalidParameterError("token_ids", f"{len(token_ids)} tokens", f"at most {limit}, the KV cache")
        ids = np.asarray(token_ids, np.int32)
        table = np.arange(num_blocks, dtype=np.int32)[None, :]
        scores = np.empty(len(ids) - first, np.float64)
        # Chunks change no bit (promise 3). The last token's logits are not needed.
        for start in range(0, len(ids) - 1, _SCORE_CHUNK):
            stop = min(start + _SCORE_CHUNK, len(ids) - 1)
            wanted = np.arange(max(start, first - 1), stop, dtype=np.int32)
            logits = self._program.run(
                self._cache,
                ids[start:stop],
                np.array([0, stop - start], np.int32),
                np.array([stop], np.int32),
                table,
                wanted - np.int32(start),
            )
            if len(wanted):
                scores[wanted[0] + 1 - first : wanted[-1] + 2 - first] = log_softmax_at(logits, ids[wanted + 1])
        return scores

    def get_node_times(self) -> list[NodeTime]:
        """(kind, seconds, bytes, operations) of every node of the last step, in order."""
        return self._program.timings()

    def close(self) -> None:
        """Give weights and KV cache back; the runner cannot run afterwards."""
        del self._program, self._cache


def _make_cache(model: ModelConfig, config: EngineConfig) -> KvCache:
    def make(num_blocks: int) -> KvCache:
        return KvCache(model.num_layers, model.num_kv_heads, model.head_dim, num_blocks, config.kv_cache_dtype)

    num_blocks = choose_num_blocks(config, model, KV_BLOCK_TOKENS, make(1).bytes_per_block, read_free_bytes())
    try:
        return make(num_blocks)
    except MemoryError as error:
        raise ConfigError(f"the KV cache of {num_blocks} blocks cannot be had from this machine's memory") from error


def _build_batch(plan: StepPlan) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Arrays of `Program.run` for a plan: token ids, cu_seqlens, context lengths, block tables, sampled rows."""
    scheduled = plan.scheduled
    token_ids: list[int] = []
    cu_seqlens = [0]
    contexts: list[int] = []
    samples: list[int] = []
    width = 1
    for item in scheduled:
        token_ids += item.token_ids
        cu_seqlens.append(len(token_ids))
        contexts.append(item.start + len(item.token_ids))
        width = max(width, len(item.block_table))
        if item.needs_sample:
            samples.append(len(token_ids) - 1)
    tables = np.zeros((len(scheduled), width), np.int32)
    for row, item in enumerate(scheduled):
        tables[row, : len(item.block_table)] = item.block_table
    return (
        np.array(token_ids, np.int32),
        np.array(cu_seqlens, np.int32),
        np.array(contexts, np.int32),
        tables,
        np.array(samples, np.int32),
    )
