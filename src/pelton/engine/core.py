"""`EngineCore`: schedule, run, update. One step of the engine, and nothing else.

It knows token ids only: no text, no files, no threads. Entry point: `EngineCore.step`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pelton.core.config import EngineConfig
from pelton.core.embedding import TextChunk
from pelton.core.errors import PeltonError
from pelton.core.request import Request, RequestStatus
from pelton.core.step_cost import NodeTime
from pelton.core.step_plan import SampledToken, StepPlan, StepResult
from pelton.scheduling.kv_manager import KvManager
from pelton.scheduling.limits import SchedulerLimits
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

    def get_block(self, block_id: int) -> bytes:
        """K/V of a block, equally many bytes for each."""

    def set_block(self, block_id: int, data: bytes) -> None:
        """Write the K/V of a block that `get_block` of such a runner gave."""

    def get_node_times(self) -> list[NodeTime]:
        """What every node of the last step took and needed, in order."""

    def close(self) -> None:
        """Give memory and threads back."""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What a step did: its plan, the requests that gained a token, and those that failed, with the reason.

    `plan_s`, `model_s` and `sample_s` are the seconds that planning, the model and sampling took.
    """

    plan: StepPlan
    updated: list[tuple[Request, SampledToken]]
    failed: list[tuple[Request, str]]
    plan_s: float
    model_s: float
    sample_s: float


class EngineCore:
    """A scheduler and a runner, advanced one step at a time by whoever owns this object.

    `num_steps` counts the steps so far, `model_s` and `sample_s` the seconds that the model and sampling took of them.

    With `is_interactive` callers see each token when it comes, so that a long prompt must not hold the others up;
    without, only the time to the last token counts.
    """

    def __init__(self, runner: Runner, config: EngineConfig, *, is_interactive: bool = True) -> None:
        self.runner = runner
        self.num_steps = 0
        self.model_s = 0.0
        self.sample_s = 0.0
        self.scheduler = Scheduler(
            KvManager(
                runner.num_blocks,
                runner.block_size,
                use_prefix_cache=config.use_prefix_cache and config.use_kv_cache,
            ),
            SchedulerLimits(
                max_num_batched_tokens=config.prefill_chunk,
                max_num_seqs=config.max_num_seqs,
                max_step_s=config.get_max_step_s(is_interactive),
                policy=config.scheduling_policy,
                use_kv_cache=config.use_kv_cache,
            ),
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

    def step(
        self, *, isolates_errors: bool = False, on_planned: Callable[[StepPlan], None] | None = None
    ) -> StepOutcome:
        """Compute one step; `on_planned` is called between planning and computing it.

        A step that raises has changed no request's tokens; it can be repeated, or everything dropped by `reset`.
        With `isolates_errors` a step in which the runner raises an `Exception` is computed again, request by request,
        and only those that raise once more fail; the others get the tokens they would have had.
        """
        start_s = time.perf_counter()
        plan = self.scheduler.schedule()
        plan_s = time.perf_counter() - start_s
        if on_planned is not None:
            on_planned(plan)
        result = self._run_isolated(plan) if isolates_errors else self.runner.run(plan)
        updated = self.scheduler.update(plan, result)
        self.num_steps += 1
        self.model_s += result.model_s
        self.sample_s += result.sample_s
        failed = []
        if result.failed:
            requests = (item.request for item in plan.scheduled)
            failed = [(r, result.failed[r.request_id]) for r in requests if r.status is RequestStatus.FAILED]
        return StepOutcome(plan, updated, failed, plan_s, result.model_s, result.sample_s)

    def _run_isolated(self, plan: StepPlan) -> StepResult:
        try:
            return self.runner.run(plan)
        except Exception as error:
            if len(plan.scheduled) <= 1:
                return StepResult({}, 0.0, 0.0, failed={i.request.request_id: _describe(error) for i in plan.scheduled})
        # Each request's numbers are the same bits alone as in a batch, so the others lose nothing but time.
        results = [self._run_isolated(part) for part in _split(plan)]
        return StepResult(
            sampled={name: token for result in results for name, token in result.sampled.items()},
            model_s=sum(result.model_s for result in results),
            sample_s=sum(result.sample_s for result in results),
            failed={name: reason for result in results for name, reason in result.failed.items()},
            prompt_logprobs={name: found for result in results for name, found in result.prompt_logprobs.items()},
        )

    def clear_prefix_cache(self) -> None:
        """Forget what free KV blocks hold; needed before anything but a step writes into them."""
        self.scheduler.clear_prefix_cache()

    def reset(self) -> None:
        """Abort all requests and free all blocks, whatever interrupted the last step."""
        self.scheduler.reset()


def _split(plan: StepPlan) -> list[StepPlan]:
    """One plan per request; the copies come before all of them, and making them again changes nothing."""
    return [StepPlan((item,), () if i else plan.block_copies) for i, item in enumerate(plan.scheduled)]


def _describe(error: Exception) -> str:
    if isinstance(error, PeltonError):
        return str(error)
    return f"internal error in the model's step: {type(error).__name__}: {error}"
