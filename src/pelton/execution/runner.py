"""`ModelRunner`: one native call and one sampling call per step.

Entry point: `ModelRunner.run`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from pelton._native import KV_BLOCK_TOKENS, KvCache, Program
from pelton.compute.native import choose_isa
from pelton.compute.recorder import record_program
from pelton.core.config import EngineConfig, read_environment
from pelton.core.embedding import TextChunk
from pelton.core.errors import ConfigError, InvalidParameterError
from pelton.core.model_config import ModelConfig
from pelton.core.step_cost import NodeTime
from pelton.core.step_plan import SampledToken, StepPlan, StepResult
from pelton.execution.constraint_masks import ConstraintMasks, MaskOrError, accept_tokens
from pelton.execution.hidden_states import HiddenStateProgram
from pelton.execution.kv_size import choose_num_blocks, read_free_bytes
from pelton.execution.logit_rows import LogitRows, choose_logit_rows
from pelton.loading.model import LoadedModel
from pelton.sampling.logprobs import log_softmax_at
from pelton.sampling.masks import MaskMaker
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
        self._sampler = Sampler(min(model.tokenizer.vocab_size, model.config.vocab_size), model.pool)
        self._mask_maker = MaskMaker(self._sampler.vocab_size)
        # Constraints count tokens as the tokenizer does.
        self._constraint_masks = ConstraintMasks(model.tokenizer.vocab_size)
        self._hidden_states = HiddenStateProgram(model, self.isa, config, self.num_blocks)

    @property
    def vocab_size(self) -> int:
        """Columns of the logits."""
        return self._config.vocab_size

    def run(self, plan: StepPlan) -> StepResult:
        """Compute the plan's tokens and sample a token for each request that needs one.

        A request from whose logits no token can be drawn is in `failed` of the result; the others go on. An exception
        leaves the requests as they were.
        """
        for source, target in plan.block_copies:
            self._cache.copy_block(source, target)
        rows = choose_logit_rows(plan)
        pending = self._constraint_masks.start(rows.requests)
        batch = _build_batch(plan)
        start_s = time.perf_counter()
        try:
            logits = self._program.run(self._cache, *batch, rows.batch_rows)
        finally:
            model_end_s = time.perf_counter()
            masks = {} if pending is None else pending.result()
        if self._sampler.vocab_size != self.vocab_size:
            logits = np.ascontiguousarray(logits[:, : self._sampler.vocab_size])
        prompt_logprobs, failed = rows.find_prompt_logprobs(logits)
        sampled = self._sample(rows, logits, masks, failed)
        # Last: a step that raised before can be repeated.
        failed |= accept_tokens(rows.requests, sampled)
        return StepResult(sampled, model_end_s - start_s, time.perf_counter() - model_end_s, failed, prompt_logprobs)

    def _sample(
        self,
        rows: LogitRows,
        logits: npt.NDArray[np.float32],
        masks: Mapping[str, MaskOrError],
        failed: dict[str, str],
    ) -> dict[str, SampledToken]:
        """Sample the rows that ask for it; `failed` gains the requests that have no token."""
        sampling_rows = []
        for request in rows.requests:
            mask = masks.get(request.request_id)
            if isinstance(mask, str):
                failed[request.request_id] = mask
                mask = None
            sampling_rows.append(SamplingRow.from_request(request, self._mask_maker.make(request, mask)))
        results = self._sampler.sample_each(rows.select_samples(logits), sampling_rows)
        sampled: dict[str, SampledToken] = {}
        for request, result in zip(rows.requests, results, strict=True):
            if not isinstance(result, SampledToken):
                failed.setdefault(request.request_id, str(result))
            elif request.request_id not in failed:
                sampled[request.request_id] = result
        return sampled

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

    @property
    def num_embedding_blocks(self) -> int:
        """KV blocks that `compute_hidden_states` has; no request uses them."""
        return self._hidden_states.num_blocks

    def compute_hidden_states(self, chunks: Sequence[TextChunk]) -> npt.NDArray[np.float32]:
        """Hidden states of all tokens of `chunks`, [T, hidden] f32; see `HiddenStateProgram.run`."""
        return self._hidden_states.run(chunks)

    def end_hidden_states(self) -> None:
        """Give the memory that `compute_hidden_states` took for K/V back, until it is called again."""
        self._hidden_states.drop_cache()

    def get_block(self, block_id: int) -> bytes:
        """K/V of a block, all layers, in the cache's own layout without padding. ValueError if there is none."""
        return self._cache.get_block(block_id)

    def set_block(self, block_id: int, data: bytes) -> None:
        """Write what `get_block` gave. ValueError for a block that does not exist or another number of bytes."""
        self._cache.set_block(block_id, data)

    def get_node_times(self) -> list[NodeTime]:
        """(kind, seconds, bytes, operations) of every node of the last step, in order."""
        return self._program.timings()

    def close(self) -> None:
        """Give weights and KV cache back; the runner cannot run afterwards."""
        self._constraint_masks.close()
        del self._program, self._cache, self._hidden_states


def _make_cache(model: ModelConfig, config: EngineConfig) -> KvCache:
    def make(num_blocks: int) -> KvCache:
        return KvCache(model.num_layers, model.num_kv_heads, model.head_dim, num_blocks, config.kv_cache_dtype)

    num_blocks = choose_num_blocks(config, model, KV_BLOCK_TOKENS, make(1).bytes_per_block, read_free_bytes())
    try:
        return make(num_blocks)
    except MemoryError as error:
        raise ConfigError(f"the KV cache of {num_blocks} blocks cannot be had from this machine's memory") from error


def _build_batch(plan: StepPlan) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Arrays of `Program.run` for a plan: token ids, cu_seqlens, context lengths, block tables."""
    scheduled = plan.scheduled
    token_ids: list[int] = []
    cu_seqlens = [0]
    contexts: list[int] = []
    width = 1
    for item in scheduled:
        token_ids += item.token_ids
        cu_seqlens.append(len(token_ids))
        contexts.append(item.start + len(item.token_ids))
        width = max(width, len(item.block_table))
    tables = np.zeros((len(scheduled), width), np.int32)
    for row, item in enumerate(scheduled):
        tables[row, : len(item.block_table)] = item.block_table
    return (
        np.array(token_ids, np.int32),
        np.array(cu_seqlens, np.int32),
        np.array(contexts, np.int32),
        tables,
    )
