"""`EngineCore`: schedule, run, update. One step of the engine, and nothing else.

It knows token ids only: no text, no files, no threads. Entry point: `EngineCore.step`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pelton.core.config import EngineConfig
from pelton.core.embedding import TextChunk
from pelton.core.request import Request, RequestStatus
from pelton.core.step_cost import NodeTime
from pelton.core.step_plan import SampledToken, StepPlan, StepResult
from pelton.scheduling.block_pool import BlockPool
from pelton.scheduling.scheduler import Scheduler

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Runner(Protocol):
    """What the engine needs from `execution.runner.ModelRunner`; tests put a scripted one in its place."""

    @property
    def block_size(self) -> int:
        """Token slots of a KV cache block."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""

    @property
    def kv_bytes_per_block(self) -> int:
        """Bytes of K and V that a block holds over all layers."""

    @property
    def num_threads(self) -> int:
        """Threads that compute."""

    @property
    def isa(self) -> str:
        """Instruction set of the kernels."""

    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step."""

    def score(self, token_ids: Sequence[int], first: int) -> npt.NDArray[np.float64]:
        """Log-probabilities of `token_ids[first:]`, each given all tokens before it."""

    @property
    def num_embedding_blocks(self) -> int:
        """Blocks for the K/V of texts to embed, apart from the KV cache."""

    def compute_hidden_states(self, chunks: Sequence[TextChunk]) -> npt.NDArray[np.float32]:
        """Hidden states of all tokens of `chunks`, [T, hidden], valid until the next call."""

    def end_hidden_states(self) -> None:
        """Give back the memory that `compute_hidden_states` holds between calls."""

    def get_node_times(self) -> list[NodeTime]:
        """What every node of the last step took and needed, in order."""

    def close(self) -> None:
        """Give memory and threads back."""


class EngineCore:
    """A scheduler and a runner, advanced one step at a time by whoever owns this object."""

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        self.runner = runner
        self.scheduler = Scheduler(
            BlockPool(runner.num_blocks, runner.block_size),
            max_num_batched_tokens=config.prefill_chunk,
            max_num_seqs=config.max_num_seqs,
            use_kv_cache=config.use_kv_cache,
        )

    @property
    def num_unfinished_requests(self) -> int:
        """Requests that run or wait."""
        return self.scheduler.num_running + self.scheduler.num_waiting

    def add_request(self, request: Request) -> None:
        """Queue a request; raises what `Scheduler.add_request` raises."""
        self.scheduler.add_request(request)

    def finish_request(self, request_id: str, status: RequestStatus) -> bool:
        """End a request from outside and free its blocks; False if it is unknown or finished."""
        return self.scheduler.finish_request(request_id, status)

    def abort_request(self, request_id: str) -> bool:
        """Drop a request and free its blocks; False if it is unknown or finished."""
        return self.scheduler.abort_request(request_id)

    def step(self) -> list[tuple[Request, SampledToken]]:
        """Compute one step and return the requests that gained a token, with that token.

        A step that raises has changed no request's tokens; it can be repeated, or everything dropped by `reset`.
        """
        plan = self.scheduler.schedule()
        result = self.runner.run(plan)
        return self.scheduler.update(plan, result)

    def reset(self) -> None:
        """Abort all requests and free all blocks, whatever interrupted the last step."""
        self.scheduler.reset()
