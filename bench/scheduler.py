"""What the scheduler costs: milliseconds of `schedule` and `update` per step, without any model.

    python bench/scheduler.py --running 256 --waiting 1000

Measures steps in which all running requests decode while others wait, the admission of prompts (cold, and found in the
prefix cache), and aborts. The target is under 1 ms for a decode step with 256 running and 1,000 waiting requests.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable

from pelton.core.request import Request
from pelton.core.sampling_params import SamplingParams
from pelton.core.step_plan import SampledToken, StepPlan, StepResult
from pelton.scheduling.kv_manager import KvManager
from pelton.scheduling.limits import SchedulerLimits
from pelton.scheduling.scheduler import Scheduler

BLOCK_SIZE = 16
TOKEN = SampledToken(7, None)


def make_request(name: str, num_prompt_tokens: int, max_tokens: int, *, start: int = 0, tenant: str = "") -> Request:
    """A request whose prompt counts up from `start`."""
    prompt = tuple(range(start, start + num_prompt_tokens))
    return Request(name, prompt, SamplingParams(), max_tokens, 0, frozenset((1,)), 0.0, tenant=tenant)


def make_result(plan: StepPlan) -> StepResult:
    """One token for everybody who needs one."""
    return StepResult({s.request.request_id: TOKEN for s in plan.scheduled if s.needs_sample}, 0.0, 0.0)


def run_step(scheduler: Scheduler) -> float:
    """One step; milliseconds of `schedule` and `update`."""
    start = time.perf_counter()
    plan = scheduler.schedule()
    middle = time.perf_counter()
    result = make_result(plan)
    resumed = time.perf_counter()
    scheduler.update(plan, result)
    return ((middle - start) + (time.perf_counter() - resumed)) * 1000


def report(name: str, times_ms: list[float]) -> None:
    """Print median, 99th percentile and maximum of a measurement."""
    ordered = sorted(times_ms)
    p99 = ordered[min(int(0.99 * len(ordered)), len(ordered) - 1)]
    print(f"{name:58} median {statistics.median(ordered):7.3f} ms  p99 {p99:7.3f}  max {ordered[-1]:7.3f}")


def measure_decodes(policy: str, num_running: int, num_waiting: int, num_tenants: int) -> list[float]:
    """Steps of `num_running` decodes while `num_waiting` requests wait for a place."""
    limits = SchedulerLimits(max_num_batched_tokens=1 << 20, max_num_seqs=num_running, policy=policy)
    scheduler = Scheduler(KvManager(64 * num_running, BLOCK_SIZE), limits)
    for number in range(num_running + num_waiting):
        tenant = f"t{number % num_tenants}"
        # Lengths differ, or all requests would fill their blocks in the same step.
        num_prompt_tokens = 128 + number % BLOCK_SIZE
        scheduler.add_request(make_request(f"r{number}", num_prompt_tokens, 600, start=1000 * number, tenant=tenant))
    run_step(scheduler)
    assert scheduler.num_running == num_running
    assert scheduler.num_waiting == num_waiting
    return [run_step(scheduler) for _ in range(500)]


def measure_call(num: int, call: Callable[[int], object]) -> list[float]:
    """Milliseconds of `num` calls."""
    times = []
    for number in range(num):
        start = time.perf_counter()
        call(number)
        times.append((time.perf_counter() - start) * 1000)
    return times


def measure_admission(num_prompt_tokens: int) -> None:
    """Steps that admit one prompt: not known, then all of it cached; and the same for aborts of waiting requests."""
    limits = SchedulerLimits(max_num_batched_tokens=1 << 20, max_num_seqs=1)
    scheduler = Scheduler(KvManager(1 << 16, BLOCK_SIZE), limits)
    for kind in ("cold", "cached"):
        times = []
        for number in range(50):
            scheduler.add_request(make_request(f"{kind}{number}", num_prompt_tokens, 1, start=10_000 * number))
            times.append(run_step(scheduler))
        report(f"admission of {num_prompt_tokens:,} prompt tokens, {kind}", times)
    for number in range(1000):
        scheduler.add_request(make_request(f"w{number}", 16, 1))
    report("abort of one of 1,000 waiting requests", measure_call(1000, lambda n: scheduler.abort_request(f"w{n}")))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=256)
    parser.add_argument("--waiting", type=int, default=1000)
    arguments = parser.parse_args()
    gc.freeze()
    for policy, num_tenants in (("fcfs", 1), ("fair", 1), ("fair", 1000)):
        times = measure_decodes(policy, arguments.running, arguments.waiting, num_tenants)
        name = f"{policy}, {num_tenants} tenants: {arguments.running} decodes, {arguments.waiting:,} waiting"
        report(name, times)
    measure_admission(4096)


if __name__ == "__main__":
    main()
