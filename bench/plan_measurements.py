"""What `bench/plan_vs_measured.py` holds predictions against: TTFT, ITL and memory of one model, measured here.

Drives the runner directly, all requests in lockstep. Of a context only the first blocks are computed, and copied to all
others, as 32 x 4096 tokens would otherwise take minutes: what K and V hold changes no time. Start at `measure`.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pelton import LLM, SamplingParams
from pelton.core.request import Request
from pelton.core.step_cost import share_time
from pelton.core.step_plan import ScheduledRequest, StepPlan
from pelton.engine.benchmark import Lockstep
from pelton.engine.core import Runner

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
STEP_TOKENS = 2048
# Tokens of context that are computed; the blocks behind them are copies.
FILL_TOKENS = 256


@dataclass(frozen=True)
class Case:
    """One situation: `users` requests, each a prompt of `prompt` tokens after `depth` cached ones."""

    users: int
    depth: int
    prompt: int
    new_tokens: int


@dataclass(frozen=True)
class Measurement:
    """Medians in seconds: the last of all first tokens, and the time between two tokens; `*_node_s` as in `share_time`.

    `resident_bytes` is what the process holds afterwards; since it started, `num_kv_blocks` KV blocks were written, and
    no step had more than `max_step_tokens` tokens of `max_step_requests` requests.
    """

    case: Case
    ttft_s: float
    itl_s: float
    ttft_node_s: dict[str, float] = field(default_factory=dict)
    itl_node_s: dict[str, float] = field(default_factory=dict)
    resident_bytes: int = 0
    num_kv_blocks: int = 0
    max_step_tokens: int = 1
    max_step_requests: int = 1


def read_resident_bytes() -> int:
    """Memory this process holds (VmRSS), in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmRSS")


def measure(
    model: Path, cases: list[Case], *, threads: int | None, kv_cache_dtype: str, repeat: int
) -> list[Measurement]:
    """Measure `cases` one after the other with one loaded model."""
    num_slots = max(case.users * (case.depth + case.prompt + case.new_tokens + 32) for case in cases)
    with LLM(model, threads=threads, kv_cache_tokens=num_slots, kv_cache_dtype=kv_cache_dtype) as llm:
        results = []
        num_blocks = max_tokens = max_requests = 1
        for case in cases:
            requests = make_requests(case, llm.runner.block_size, llm.model_config.vocab_size)
            num_blocks = max(num_blocks, sum(len(request.block_table) for request in requests))
            max_tokens = max(max_tokens, min(STEP_TOKENS, case.users * case.prompt), min(FILL_TOKENS, case.depth))
            max_requests = max(max_requests, case.users)
            result = measure_case(llm.runner, requests, case, repeat)
            results.append(
                dataclasses.replace(
                    result, num_kv_blocks=num_blocks, max_step_tokens=max_tokens, max_step_requests=max_requests
                )
            )
    return results


def measure_case(runner: Runner, requests: list[Request], case: Case, repeat: int) -> Measurement:
    """Measure one case."""
    if case.depth:
        fill_contexts(runner, requests, case.depth)
    lockstep = Lockstep(runner, requests, max_num_batched_tokens=STEP_TOKENS, use_kv_cache=True)
    stop = case.depth + case.prompt
    lockstep.prefill(case.depth, stop)
    ttft_s = [time_call(lambda: lockstep.prefill(case.depth, stop)) for _ in range(repeat)]
    ttft_nodes = share_time(runner.get_node_times())
    lockstep.decode(2)
    itl_s = []
    for _ in range(repeat):
        lockstep.drop_output_after(1)
        itl_s.append(time_call(lambda: lockstep.decode(case.new_tokens)) / case.new_tokens)
    nodes = runner.get_node_times()
    # The first sampled rows may have made the buffers anew; a whole step touches all of them again.
    lockstep.prefill(case.depth, stop)
    return Measurement(
        case=case,
        ttft_s=statistics.median(ttft_s),
        itl_s=statistics.median(itl_s),
        ttft_node_s=ttft_nodes,
        itl_node_s=share_time(nodes),
        resident_bytes=read_resident_bytes(),
    )


def make_requests(case: Case, block_size: int, vocab_size: int) -> list[Request]:
    """Requests of random tokens, each with KV blocks of its own."""
    generator = random.Random(1)
    length = case.depth + case.prompt
    num_blocks = -(-(length + case.new_tokens + 1) // block_size)
    return [
        Request(
            request_id=f"plan-{index}",
            prompt_token_ids=tuple(generator.randrange(vocab_size) for _ in range(length)),
            params=GREEDY,
            max_tokens=case.new_tokens + 2,
            seed=1,
            eos_token_ids=frozenset(),
            arrival_s=0.0,
            block_table=list(range(index * num_blocks, (index + 1) * num_blocks)),
        )
        for index in range(case.users)
    ]


def fill_contexts(runner: Runner, requests: list[Request], depth: int) -> None:
    """Compute the first request's first tokens, and copy its blocks to all others of the contexts."""
    first = requests[0]
    num_computed = min(FILL_TOKENS, depth)
    Lockstep(runner, requests[:1], max_num_batched_tokens=STEP_TOKENS, use_kv_cache=True).prefill(0, num_computed)
    sources = first.block_table[: num_computed // runner.block_size]
    num_filled = -(-depth // runner.block_size)
    copies = tuple(
        (sources[index % len(sources)], target)
        for request in requests
        for index, target in enumerate(request.block_table[:num_filled])
        if target not in sources
    )
    step = ScheduledRequest(first, first.get_token_ids(0, 1), 0, False, first.block_table)
    runner.run(StepPlan((step,), block_copies=copies))


def time_call(work: Callable[[], None]) -> float:
    """Seconds that `work` takes."""
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s
