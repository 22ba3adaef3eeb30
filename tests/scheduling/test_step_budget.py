"""The step budget with a model of known cost in place of a clock: steps stay short, and prompts still move."""

from __future__ import annotations

import random

import pytest

from pelton.core.step_plan import StepPlan, StepResult
from pelton.scheduling.step_budget import LONE_PREFILL_TOKENS, MIN_PREFILL_TOKENS, StepBudget


class TimedRunner:
    """Wraps the arithmetic runner: a step takes base + decodes * d + sum over prompt tokens of (a + b * depth)."""

    def __init__(self, runner, *, base=5e-3, decode=1e-4, token=2e-4, slope=1e-7, noise=0.0, seed=0) -> None:
        self.runner = runner
        self.base, self.decode, self.token, self.slope, self.noise = base, decode, token, slope, noise
        self.rng = random.Random(seed)
        self.steps: list[tuple[int, int, float]] = []  # decodes, prompt tokens, seconds

    def run(self, plan: StepPlan) -> StepResult:
        result = self.runner.run(plan)
        decodes = [s for s in plan.scheduled if len(s.token_ids) == 1]
        prompts = [s for s in plan.scheduled if len(s.token_ids) > 1]
        seconds = self.base + self.decode * len(decodes)
        for item in prompts:
            num = len(item.token_ids)
            seconds += num * self.token + self.slope * num * (item.start + num / 2)
        seconds *= 1 + self.noise * self.rng.random()
        if self.noise and self.rng.random() < 0.05:
            seconds *= 5
        self.steps.append((len(decodes), sum(len(s.token_ids) for s in prompts), seconds))
        return StepResult(result.sampled, seconds, 0.0)


def run_steps(scheduler, runner, num_steps: int) -> None:
    for _ in range(num_steps):
        plan = scheduler.schedule()
        scheduler.update(plan, runner.run(plan))


def start_decodes(kit, scheduler, runner, num: int) -> None:
    for number in range(num):
        scheduler.add_request(kit.make_request(f"d{number}", range(1000 * number, 1000 * number + 50), 2000))
    run_steps(scheduler, runner, 30)


def prefill(kit, scheduler, runner, num_tokens: int) -> list[tuple[int, int, float]]:
    """Steps from the arrival of a long prompt to its first token."""
    request = kit.make_request("long", range(10**6, 10**6 + num_tokens), 1)
    first = len(runner.steps)
    scheduler.add_request(request)
    while not request.status.is_finished:
        run_steps(scheduler, runner, 1)
        assert len(runner.steps) - first < 3000, "the prompt starves"
    return runner.steps[first:]


def test_default_keeps_steps_below_three_times_the_decodes_own_time(kit) -> None:
    scheduler = kit.make_scheduler(num_blocks=20_000, chunk=2048)
    runner = TimedRunner(kit.make_runner(4), base=12e-3)
    start_decodes(kit, scheduler, runner, 7)
    quiet_s = runner.steps[-1][2]
    steps = prefill(kit, scheduler, runner, 4000)
    times = sorted(seconds for _, _, seconds in steps)
    assert times[len(times) // 2] < 2.7 * quiet_s
    assert times[-1] < 3 * quiet_s
    # It uses what it may: 19 ms buy 32 to 95 tokens a step.
    assert sum(times) < 2.5 * (4000 * 2e-4 + 1e-7 * 4000**2 / 2) + 30 * quiet_s + len(steps) * quiet_s


def test_default_lets_fast_decodes_wait_as_long_as_no_reader_notices(kit) -> None:
    scheduler = kit.make_scheduler(num_blocks=20_000, chunk=2048)
    runner = TimedRunner(kit.make_runner(4), base=2e-3)
    start_decodes(kit, scheduler, runner, 1)
    times = sorted(seconds for _, _, seconds in prefill(kit, scheduler, runner, 4000))
    assert 0.017 < times[len(times) // 2] < 0.022
    assert times[-1] < 0.025


def test_deeper_prompts_get_fewer_tokens_a_step(kit) -> None:
    scheduler = kit.make_scheduler(num_blocks=20_000, chunk=2048)
    runner = TimedRunner(kit.make_runner(4), base=50e-3, slope=4e-7)
    start_decodes(kit, scheduler, runner, 4)
    chunks = [num for _, num, _ in prefill(kit, scheduler, runner, 4000) if num]
    assert sum(chunks[1:4]) / 3 > 2 * sum(chunks[-4:-1]) / 3
    seconds = [s for _, num, s in runner.steps[-len(chunks) :] if num]
    assert max(seconds[3:]) < 1.3 * 2.5 * 50.4e-3


def test_explicit_budget_is_kept_where_decodes_leave_room(kit) -> None:
    scheduler = kit.make_scheduler(num_blocks=20_000, chunk=2048, max_step_s=0.050)
    runner = TimedRunner(kit.make_runner(4))
    start_decodes(kit, scheduler, runner, 4)
    steps = prefill(kit, scheduler, runner, 4000)[2:]
    full = [seconds for _, num, seconds in steps[:-1] if num > 20]
    assert max(full) < 0.060
    assert sum(full) / len(full) > 0.035


def test_budget_too_small_for_the_decodes_still_moves_prompts(kit) -> None:
    scheduler = kit.make_scheduler(num_blocks=20_000, chunk=2048, max_step_s=0.001)
    runner = TimedRunner(kit.make_runner(4))
    start_decodes(kit, scheduler, runner, 4)
    chunks = [num for _, num, _ in prefill(kit, scheduler, runner, 1000)[1:-1]]
    assert {num for num in chunks if num} == {MIN_PREFILL_TOKENS}
    assert chunks.count(0) <= 1 + len(chunks) // 32


def test_without_decodes_whole_chunks_are_computed(kit) -> None:
    scheduler = kit.make_scheduler(num_blocks=20_000, chunk=512, max_step_s=0.001)
    runner = TimedRunner(kit.make_runner(4))
    scheduler.add_request(kit.make_request("a", range(1100), 1))
    run_steps(scheduler, runner, 3)
    assert [num for _, num, _ in runner.steps] == [512, 512, 76]


def test_a_lone_prompt_leaves_room_for_newcomers() -> None:
    budget = StepBudget()
    budget.start(0)
    assert budget.limit(0, 5000) == 5000  # nothing is known yet
    budget.spend(0, 1000)
    budget.observe(1.0)
    budget.start(0)
    # A millisecond a token: a quarter of a second.
    assert budget.limit(0, 5000) == 250
    slow = StepBudget()
    slow.start(0)
    slow.spend(0, 100)
    slow.observe(10.0)
    slow.start(0)
    assert slow.limit(0, 5000) == LONE_PREFILL_TOKENS
    patient = StepBudget(0.5)
    patient.start(0)
    patient.spend(0, 1000)
    patient.observe(1.0)
    patient.start(0)
    assert patient.limit(0, 5000) == 500


def test_infinite_budget_computes_whole_chunks_beside_decodes(kit) -> None:
    scheduler = kit.make_scheduler(num_blocks=20_000, chunk=512, max_step_s=float("inf"))
    runner = TimedRunner(kit.make_runner(4))
    start_decodes(kit, scheduler, runner, 4)
    assert [num for _, num, _ in prefill(kit, scheduler, runner, 1100)] == [512, 512, 76]


def test_noise_and_interruptions_do_not_derail_the_estimate(kit) -> None:
    scheduler = kit.make_scheduler(num_blocks=20_000, chunk=2048)
    runner = TimedRunner(kit.make_runner(4), noise=0.2, seed=3)
    start_decodes(kit, scheduler, runner, 7)
    steps = prefill(kit, scheduler, runner, 4000)
    times = sorted(seconds for _, _, seconds in steps)
    assert times[len(times) // 2] < 1.3 * 20e-3
    chunks = sorted(num for _, num, _ in steps if num)
    assert chunks[len(chunks) // 2] >= MIN_PREFILL_TOKENS


@pytest.mark.parametrize("num_decodes", [1, 64])
def test_change_of_load_is_noticed(kit, num_decodes: int) -> None:
    budget = StepBudget()
    budget.start(0)
    budget.spend(0, 100)
    budget.observe(0.1)
    for _ in range(5):
        budget.start(8)
        budget.observe(0.010)
    for _ in range(9):
        budget.start(8)
        num_tokens = budget.limit(0, 1000)
        budget.spend(0, num_tokens)
        budget.observe(0.010 + 0.001 * num_tokens)
    budget.start(num_decodes)
    assert budget.is_used_up  # this step measures the decodes anew
    budget.observe(0.050)
    budget.start(num_decodes)
    assert budget.limit(0, 1000) == pytest.approx(75, abs=10)


def test_runner_without_a_clock_is_not_limited(kit) -> None:
    budget = StepBudget(0.001)
    for _ in range(10):
        budget.start(5)
        assert budget.limit(0, 5000) == 5000
        budget.spend(0, 5000)
        budget.observe(0.0)


@pytest.mark.parametrize("max_step_s", [None, 0.0001, 0.02, 10.0])
def test_timing_changes_when_tokens_are_computed_and_never_which(kit, max_step_s) -> None:
    for seed in range(5):
        scheduler = kit.make_scheduler(num_blocks=60, chunk=64, max_step_s=max_step_s)
        runner = TimedRunner(kit.make_runner(4), noise=3.0, seed=seed)
        requests = [kit.make_request(f"r{n}", range(n, n + 10 + 9 * n), 12, seed=n) for n in range(7)]
        for request in requests:
            scheduler.add_request(request)
        kit.run_all(scheduler, runner)
        for request in requests:
            assert request.output_token_ids == kit.compute_alone(request.prompt_token_ids, 12, request.seed)
