"""A model made of arithmetic for scheduler tests: it really stores K/V in numbered blocks and reads them back.

The next token is a hash of everything stored for the sequence, of the seed, and of what counts as prompt and as output.
So a lost, doubled or foreign block, a token computed at the wrong place, or an output taken for prompt changes it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import pytest

from pelton.core.request import Request
from pelton.core.sampling_params import SamplingParams
from pelton.core.step_plan import SampledToken, ScheduledRequest, StepPlan, StepResult
from pelton.scheduling.kv_manager import KvManager
from pelton.scheduling.limits import SchedulerLimits
from pelton.scheduling.scheduler import Scheduler

VOCAB_SIZE = 1000


def hash_next_token(prompt: Sequence[int], output: Sequence[int], seed: int) -> int:
    """The token that follows, by definition of the fake model."""
    return zlib.crc32(repr((list(prompt), list(output), seed)).encode()) % VOCAB_SIZE


class ArithmeticRunner:
    """Runs plans; `memory` maps (block, offset) to the (position, token) stored there.

    A step claims to take `seconds_per_step`, half of it for each prompt of several tokens.
    """

    def __init__(self, block_size: int, seconds_per_step: float = 0.0) -> None:
        self.block_size = block_size
        self.seconds_per_step = seconds_per_step
        self.memory: dict[tuple[int, int], tuple[int, int]] = {}
        self.plans: list[list[tuple[str, int, int]]] = []

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append([(s.request.request_id, s.start, len(s.token_ids)) for s in plan.scheduled])
        for source, target in plan.block_copies:
            for offset in range(self.block_size):
                self.memory.pop((target, offset), None)
                if (source, offset) in self.memory:
                    self.memory[target, offset] = self.memory[source, offset]
        # All writes before all reads: two sequences that share a block by mistake must notice.
        for item in plan.scheduled:
            for position, token_id in enumerate(item.token_ids, start=item.start):
                self.memory[self._get_slot(item, position)] = (position, token_id)
        sampled = {s.request.request_id: SampledToken(self._sample(s), None) for s in plan.scheduled if s.needs_sample}
        num_prompts = sum(len(s.token_ids) > 1 for s in plan.scheduled)
        return StepResult(sampled=sampled, model_s=self.seconds_per_step * (1 + num_prompts / 2), sample_s=0.0)

    def _get_slot(self, item: ScheduledRequest, position: int) -> tuple[int, int]:
        return item.block_table[position // self.block_size], position % self.block_size

    def _sample(self, item: ScheduledRequest) -> int:
        request = item.request
        context_len = item.start + len(item.token_ids)
        stored = [self.memory[self._get_slot(item, position)] for position in range(context_len)]
        assert [position for position, _ in stored] == list(range(context_len)), "a slot holds another position"
        token_ids = [token_id for _, token_id in stored]
        num_prompt = len(request.prompt_token_ids)
        assert token_ids[num_prompt:] == request.output_token_ids
        return hash_next_token(token_ids[:num_prompt], request.output_token_ids, request.seed)


def make_request(
    request_id: str, prompt: Sequence[int], max_tokens: int, *, seed: int = 0, eos: Sequence[int] = (), **fields: object
) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        params=SamplingParams(frequency_penalty=0.5),
        max_tokens=max_tokens,
        seed=seed,
        eos_token_ids=frozenset(eos),
        arrival_s=0.0,
        **fields,
    )


def make_scheduler(
    num_blocks: int = 64,
    block_size: int = 4,
    *,
    chunk: int = 16,
    max_num_seqs: int = 8,
    use_kv_cache: bool = True,
    use_prefix_cache: bool = True,
    policy: str = "fcfs",
    **options: object,
) -> Scheduler:
    limits = SchedulerLimits(
        max_num_batched_tokens=chunk,
        max_num_seqs=max_num_seqs,
        use_kv_cache=use_kv_cache,
        policy=policy,
        **options,
    )
    return Scheduler(KvManager(num_blocks, block_size, use_prefix_cache=use_prefix_cache and use_kv_cache), limits)


def compute_alone(prompt: Sequence[int], max_tokens: int, seed: int, eos: Sequence[int] = ()) -> list[int]:
    """What a request must generate, from the definition of the model alone."""
    output: list[int] = []
    while len(output) < max_tokens:
        output.append(hash_next_token(prompt, output, seed))
        if output[-1] in eos:
            break
    return output


def run_step(scheduler: Scheduler, runner: ArithmeticRunner) -> list[tuple[Request, SampledToken]]:
    """One engine step with the invariants checked on both sides of the runner."""
    plan = scheduler.schedule()
    scheduler.check_invariants()
    assert plan.scheduled, "a step with unfinished requests must compute something"
    updated = scheduler.update(plan, runner.run(plan))
    scheduler.check_invariants()
    return updated


def run_all(scheduler: Scheduler, runner: ArithmeticRunner, max_num_steps: int = 5000) -> None:
    num_steps = 0
    while scheduler.has_unfinished_requests:
        run_step(scheduler, runner)
        num_steps += 1
        assert num_steps < max_num_steps, "the scheduler does not come to an end"


class Kit:
    """What the tests use, in one fixture (test files cannot import each other)."""

    make_request = staticmethod(make_request)
    make_scheduler = staticmethod(make_scheduler)
    make_runner: Callable[..., ArithmeticRunner] = ArithmeticRunner
    compute_alone = staticmethod(compute_alone)
    run_step = staticmethod(run_step)
    run_all = staticmethod(run_all)


@pytest.fixture
def kit() -> Kit:
    return Kit()
