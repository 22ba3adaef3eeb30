"""What recording traces costs: the recorder's own seconds, and those of steps with and without it.

    python bench/trace_cost.py -m model.gguf

(a) Every method of the recorder is timed during runs of 1 and of 64 sequences: microseconds a step, and its share of
the step. (b) Steps with the recorder (A) and with one that does nothing (B) in turn, A B A B: whole runs would take
minutes to tell a percent on a shared machine, single steps tell it in seconds. Also bytes that are kept per step. Start
at `main`.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from array import array
from collections.abc import Callable, Sequence

from pelton.core.request_options import RequestOptions
from pelton.core.sampling_params import SamplingParams
from pelton.core.step_plan import ScheduledRequest
from pelton.core.trace import RequestTrace, StepTrace
from pelton.engine.core import EngineCore, StepOutcome
from pelton.engine.parts import EngineParts, load_parts, make_config
from pelton.engine.prepare import PreparedRequest
from pelton.engine.prompts import EncodedPrompt
from pelton.engine.requests import RequestTable
from pelton.engine.trace_log import TraceLog
from pelton.engine.trace_recorder import TraceRecorder

NUM_PROMPT_TOKENS = 16
# Sequences -> tokens of each, and runs whose steps take turns.
LOADS = {1: (128, 12), 64: (32, 4)}
NO_STEP = StepTrace(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, None, None, 0, 0, array("q"))
TIMED = ("add_request", "record_step", "finish_request")


class TimedRecorder(TraceRecorder):
    """A recorder that knows how long it took; the clock's own time is in it."""

    spent_s = 0.0


def _time(name: str) -> Callable[..., object]:
    inner = getattr(TraceRecorder, name)

    def call(self: TimedRecorder, *arguments: object, **named: object) -> object:
        start_s = time.perf_counter()
        result = inner(self, *arguments, **named)
        self.spent_s += time.perf_counter() - start_s
        return result

    return call


for _name in TIMED:
    setattr(TimedRecorder, _name, _time(_name))


class SwitchedRecorder(TraceRecorder):
    """Records every second step, and notes in `seconds` how far apart the steps were by whether they were recorded."""

    is_on = False
    last_s = 0.0
    seconds: dict[bool, list[float]]

    def record_step(self, outcome: StepOutcome, start_s: float, **counts: int) -> StepTrace:
        """Record this step or not; the time since the last one began belongs to the last one."""
        if self.last_s:
            self.seconds[self.is_on].append(start_s - self.last_s)
        self.last_s, self.is_on = start_s, not self.is_on
        return super().record_step(outcome, start_s, **counts) if self.is_on else NO_STEP


class NoRecorder(TraceRecorder):
    """Records nothing."""

    def add_request(self, name: str, prepared: PreparedRequest, sequences: Sequence[object]) -> RequestTrace:
        """Return a trace that stays empty."""
        return RequestTrace(name, "", 0, (), 0.0, 0.0, 0.0, 0, 0)

    def record_step(self, outcome: StepOutcome, start_s: float, **counts: int) -> StepTrace:
        """Return the same step each time."""
        return NO_STEP

    def finish_request(self, trace: RequestTrace, finish_reason: str, end_s: float) -> None:
        """Nothing."""


def run(parts: EngineParts, recorder: TraceRecorder, num_sequences: int, num_tokens: int) -> tuple[float, int]:
    """Decode `num_tokens` tokens of each sequence; return seconds of all steps but the first, and their number."""
    config = make_config(None, {"use_prefix_cache": False})
    core = EngineCore(parts.runner, config)
    table = RequestTable(core, parts.tokenizer, context_length=2048, load_ms=0.0, recorder=recorder)
    params = SamplingParams(max_tokens=num_tokens, temperature=0.8, ignore_eos=True, seed=1)
    for number in range(num_sequences):
        ids = tuple(100 + (number * 37 + i * 11) % 5000 for i in range(NUM_PROMPT_TOKENS))
        table.add(
            table.make_key(), PreparedRequest(EncodedPrompt(ids, time.perf_counter(), 0.0), params, RequestOptions())
        )
    table.step()
    start_s, num_steps = time.perf_counter(), core.num_steps
    while table.has_unfinished:
        table.step()
    return time.perf_counter() - start_s, core.num_steps - num_steps


def measure_own(parts: EngineParts, num_sequences: int, num_tokens: int, num_runs: int) -> None:
    """Print what the recorder itself takes."""
    shares, micros = [], []
    for _ in range(num_runs):
        recorder = TimedRecorder(TraceLog(256), is_fair=False)
        seconds, num_steps = run(parts, recorder, num_sequences, num_tokens)
        shares.append(100 * recorder.spent_s / seconds)
        micros.append(1e6 * recorder.spent_s / num_steps)
    print(f"{num_sequences} sequences: recorder {_show(micros, '.1f')} us a step, {_show(shares, '.3f')} % of the time")


def measure_difference(parts: EngineParts, num_sequences: int, num_tokens: int, num_runs: int) -> None:
    """Print the milliseconds of steps with the recorder (A) and without (B), which take turns step by step."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(num_runs):
        recorder = SwitchedRecorder(TraceLog(256), is_fair=False)
        recorder.seconds = seconds
        run(parts, recorder, num_sequences, num_tokens)
    on, off = ([1e3 * each for each in seconds[is_on]] for is_on in (True, False))
    quartiles = [statistics.quantiles(each, n=4) for each in (on, off)]
    difference_us = 1e3 * (statistics.median(on) - statistics.median(off))
    # The error of a median of many values, from their quartiles: 1.25 sigma / sqrt(n), sigma = distance / 1.35.
    errors_us = [1e3 * 1.25 * (q[2] - q[0]) / 1.35 / len(on) ** 0.5 for q in quartiles]
    error_us = (errors_us[0] ** 2 + errors_us[1] ** 2) ** 0.5
    shown = " and ".join(f"{q[1]:.2f} ({q[0]:.2f} to {q[2]:.2f})" for q in quartiles)
    print(
        f"{num_sequences} sequences: steps with and without {shown} ms (quartiles, {len(on)} each): "
        f"{difference_us:+.0f} +- {error_us:.0f} us, {difference_us / 10 / quartiles[1][1]:+.2f} %"
    )


def measure_memory(num_sequences: int, num_steps: int) -> None:
    """Print the bytes that a step of decodes leaves behind."""
    requests = [_FakeRequest(number) for number in range(num_sequences)]
    plan = _FakePlan(tuple(ScheduledRequest(r, [1], 20, True, []) for r in requests))  # type: ignore[arg-type]  # fakes
    outcome = StepOutcome(plan, [], [], 1e-5, 1e-2, 1e-4)  # type: ignore[arg-type]  # a fake
    recorder = TraceRecorder(TraceLog(0), is_fair=False, read_load=lambda: None)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(num_steps):
        recorder.record_step(outcome, time.perf_counter(), num_waiting=0, num_used_blocks=1000)
    num_bytes = (tracemalloc.get_traced_memory()[0] - before) / num_steps
    tracemalloc.stop()
    print(f"{num_sequences} sequences: {num_bytes:.0f} bytes a step")


class _FakeRequest:
    def __init__(self, number: int) -> None:
        self.arrival_number = number
        self.prompt_token_ids = (1,) * 16
        self.tenant = ""


class _FakePlan:
    def __init__(self, scheduled: tuple[ScheduledRequest, ...]) -> None:
        self.scheduled = scheduled
        self.preempted = ()
        self.held_up_by = None
        self.decode_alone_s = None


def _show(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    """Measure; about a minute on two cores with a model of 135M weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sequences", type=int, nargs="+", default=sorted(LOADS), choices=sorted(LOADS))
    options = parser.parse_args()
    for num_sequences in options.sequences:
        measure_memory(num_sequences, 2000)
    config = make_config(None, {"threads": options.threads, "kv_cache_tokens": 64 * 160, "use_prefix_cache": False})
    parts = load_parts(options.model, config, None)
    try:
        for num_sequences in options.sequences:
            num_tokens, num_runs = LOADS[num_sequences]
            run(parts, NoRecorder(TraceLog(0), is_fair=False), num_sequences, num_tokens // 4)
            measure_own(parts, num_sequences, num_tokens, 3)
            measure_difference(parts, num_sequences, num_tokens, num_runs)
    finally:
        parts.runner.close()


if __name__ == "__main__":
    main()
