"""Speed of prefill and decode: fixed random token ids, warm-up, several repeats, median and spread.

The runner is driven directly, all requests in lockstep, so that one known thing is measured: `prefill` computes
`prompt_tokens` per request behind a context of `depth` tokens, `decode` then computes `new_tokens` single tokens per
request. The context is computed once and stays in the KV cache between repeats. Without the KV cache every step
recomputes whole sequences, as the scheduler does then. Untimed steps count what the timed ones need at least. Knows
runners and plans, not terminals or JSON. Start at `run_benchmark`.
"""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from pelton.core.errors import ContextLengthError, InvalidParameterError
from pelton.core.fields import check_number_types, check_option, get_option_specs, option, validate_options
from pelton.core.request import Request
from pelton.core.sampling_params import SamplingParams
from pelton.core.step_cost import StepCost, share_time
from pelton.core.step_plan import ScheduledRequest, StepPlan
from pelton.engine.core import Runner

_SEED = 1
_NUM_WARM_UP_STEPS = 2
_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)

# Measurements done, measurements in all, what comes next.
BenchmarkCallback = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkOptions:
    """What to measure, validated on construction (`InvalidParameterError`)."""

    prompt_tokens: int = option(512, "Prompt tokens per request.", minimum=1, maximum=2**20, unit="tokens")
    new_tokens: int = option(128, "Tokens to decode per request.", minimum=1, maximum=2**20, unit="tokens")
    depth: tuple[int, ...] = option(
        (0, 4096), "Tokens of context before the prompt; each value is a test.", minimum=0, maximum=2**20, unit="tokens"
    )
    concurrency: tuple[int, ...] = option(
        (1, 8, 32), "Requests computed together; each value is a test.", minimum=1, maximum=4096
    )
    repeat: int = option(5, "Timed repeats of each test.", minimum=1, maximum=1000)

    def __post_init__(self) -> None:
        check_number_types(self, ("prompt_tokens", "new_tokens", "repeat"), ())
        validate_options(self)
        specs = get_option_specs(BenchmarkOptions)
        for name, values in (("depth", self.depth), ("concurrency", self.concurrency)):
            if not values:
                raise InvalidParameterError(name, values, "at least one value")
            for value in values:
                if isinstance(value, bool) or not isinstance(value, int):
                    raise InvalidParameterError(name, value, "integers")
                check_option(name, value, specs[name])

    @property
    def max_num_tokens(self) -> int:
        """Longest sequence of any test, in tokens."""
        return max(self.depth) + self.prompt_tokens + self.new_tokens


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second over all requests: median and spread of the repeats."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """One test. `new_tokens` is 0 for prefill; for decode, `prompt_tokens` and `depth` came before the first one.

    `cost` is what one repeat needs, and `duration_s` its median; `node_s` are the seconds of the last step's nodes by
    kind (linear, attend, other), as thread 0 saw them. The shares (0 to 1) of the timed repeats are those of the model,
    of sampling, and of Python around both: making batches, and reading what was sampled.
    """

    test: Literal["prefill", "decode"]
    concurrency: int
    prompt_tokens: int
    new_tokens: int
    depth: int
    tokens_per_s: Rate
    duration_s: float
    cost: StepCost
    node_s: dict[str, float]
    model_share: float
    sample_share: float
    python_share: float


def run_benchmark(
    runner: Runner,
    options: BenchmarkOptions,
    *,
    vocab_size: int,
    context_length: int,
    max_num_batched_tokens: int,
    use_kv_cache: bool,
    progress: BenchmarkCallback | None = None,
) -> list[BenchmarkResult]:
    """Measure every combination of concurrency and depth; `progress` is called before each and at the end.

    The runner's KV cache is overwritten, so nothing else may run. Raises `ContextLengthError` if the longest sequence
    exceeds the model's context, `InvalidParameterError` if the KV cache cannot hold the largest test.
    """
    _check_room(runner, options, context_length)
    tests = [(concurrency, depth) for depth in options.depth for concurrency in options.concurrency]
    results: list[BenchmarkResult] = []
    for done, (concurrency, depth) in enumerate(tests):
        if progress is not None:
            progress(done, len(tests), f"concurrency {concurrency}, depth {depth}")
        lockstep = Lockstep(
            runner,
            _make_requests(runner, options, vocab_size, concurrency, depth),
            max_num_batched_tokens=max_num_batched_tokens,
            use_kv_cache=use_kv_cache,
        )
        results += _measure(runner, lockstep, options, concurrency, depth)
    if progress is not None:
        progress(len(tests), len(tests), "")
    return results


class Lockstep:
    """Requests that all sit at the same position and advance together; owns their tokens and positions.

    `model_s` and `sample_s` add up the seconds that the model and sampling took.
    """

    def __init__(
        self, runner: Runner, requests: Sequence[Request], *, max_num_batched_tokens: int, use_kv_cache: bool
    ) -> None:
        self._runner = runner
        self._requests = requests
        self._max_num_batched_tokens = max_num_batched_tokens
        self._use_kv_cache = use_kv_cache
        self._counted: StepCost | None = None
        self.model_s = 0.0
        self.sample_s = 0.0

    def count_cost(self, work: Callable[[], None]) -> StepCost:
        """Do `work` (steps of this object) and return what its steps need; slower than `work` alone."""
        self._counted = StepCost()
        work()
        cost, self._counted = self._counted, None
        return cost

    def prefill(self, start: int, stop: int) -> None:
        """Compute prompt positions [start, stop) of every request; at the end of the prompt, take the first token.

        Output of an earlier repeat is dropped. Without the KV cache, everything from position 0 is computed.
        """
        for request in self._requests:
            request.output_token_ids.clear()
        self._advance(start if self._use_kv_cache else 0, stop)

    def decode(self, num_tokens: int) -> None:
        """Compute `num_tokens` more tokens of every request, one step (or pass over all requests) each."""
        for _ in range(num_tokens):
            stop = self._requests[0].num_tokens
            self._advance(stop - 1 if self._use_kv_cache else 0, stop)

    def drop_output_after(self, num_tokens: int) -> None:
        """Go back to `num_tokens` output tokens, so that the same positions can be decoded again."""
        for request in self._requests:
            del request.output_token_ids[num_tokens:]

    def _advance(self, start: int, stop: int) -> None:
        for plan in self._make_plans(start, stop):
            result = self._runner.run(plan)
            self.model_s += result.model_s
            self.sample_s += result.sample_s
            if self._counted is not None:
                self._counted += StepCost.from_node_times(self._runner.get_node_times())
            for item in plan.scheduled:
                item.request.num_computed_tokens = item.start + len(item.token_ids)
                if item.needs_sample:
                    item.request.output_token_ids.append(result.sampled[item.request.request_id].token_id)

    def _make_plans(self, start: int, stop: int) -> Iterator[StepPlan]:
        """Pack the positions of all requests into steps, in order of request, as the scheduler would."""
        if stop - start == 1:
            yield StepPlan(tuple(_schedule(request, start, stop) for request in self._requests))
            return
        scheduled: list[ScheduledRequest] = []
        budget = self._max_num_batched_tokens
        for request in self._requests:
            position = start
            while position < stop:
                num_tokens = min(stop - position, budget)
                scheduled.append(_schedule(request, position, position + num_tokens))
                position += num_tokens
                budget -= num_tokens
                # A request has one place in a step, so its next part needs the next step.
                if budget == 0 or position < stop:
                    yield StepPlan(tuple(scheduled))
                    scheduled, budget = [], self._max_num_batched_tokens
        if scheduled:
            yield StepPlan(tuple(scheduled))


def _measure(
    runner: Runner, lockstep: Lockstep, options: BenchmarkOptions, concurrency: int, depth: int
) -> list[BenchmarkResult]:
    prompt_stop = depth + options.prompt_tokens
    if depth > 0:
        lockstep.prefill(0, depth)
    prefill_cost = lockstep.count_cost(lambda: lockstep.prefill(depth, prompt_stop))
    first_cost = lockstep.count_cost(lambda: lockstep.decode(1))
    lockstep.decode(min(_NUM_WARM_UP_STEPS, options.new_tokens) - 1)
    prefill_s, model_share, sample_share = _time_repeats(
        lockstep, options, lambda: lockstep.prefill(depth, prompt_stop)
    )
    prefill_nodes = runner.get_node_times()
    decode_s, *decode_shares = _time_repeats(lockstep, options, lambda: lockstep.decode(options.new_tokens))
    decode_nodes = runner.get_node_times()
    lockstep.drop_output_after(options.new_tokens)
    last_cost = lockstep.count_cost(lambda: lockstep.decode(1))
    # What a step needs grows by the same amount from token to token, so the mean step is the mean of the two ends.
    decode_cost = (first_cost + last_cost) * (options.new_tokens / 2)
    prompt, new = options.prompt_tokens, options.new_tokens
    prefill = BenchmarkResult(
        test="prefill",
        concurrency=concurrency,
        prompt_tokens=prompt,
        new_tokens=0,
        depth=depth,
        tokens_per_s=_make_rate(prompt * concurrency, prefill_s),
        duration_s=statistics.median(prefill_s),
        cost=prefill_cost,
        node_s=share_time(prefill_nodes),
        model_share=model_share,
        sample_share=sample_share,
        python_share=1.0 - model_share - sample_share,
    )
    decode = dataclasses.replace(
        prefill,
        test="decode",
        new_tokens=new,
        tokens_per_s=_make_rate(new * concurrency, decode_s),
        duration_s=statistics.median(decode_s),
        cost=decode_cost,
        node_s=share_time(decode_nodes),
        model_share=decode_shares[0],
        sample_share=decode_shares[1],
        python_share=1.0 - sum(decode_shares),
    )
    return [prefill, decode]


def _time_repeats(
    lockstep: Lockstep, options: BenchmarkOptions, work: Callable[[], None]
) -> tuple[list[float], float, float]:
    """Seconds of each repeat of `work`, which begins behind the first token; the model's and sampling's shares."""
    durations_s = []
    model_s, sample_s = lockstep.model_s, lockstep.sample_s
    for _ in range(options.repeat):
        lockstep.drop_output_after(1)
        durations_s.append(_time(work))
    total_s = sum(durations_s)
    return durations_s, (lockstep.model_s - model_s) / total_s, (lockstep.sample_s - sample_s) / total_s


def _check_room(runner: Runner, options: BenchmarkOptions, context_length: int) -> None:
    if options.max_num_tokens > context_length:
        raise ContextLengthError(
            "--depth + --prompt-tokens + --new-tokens",
            options.max_num_tokens,
            f"at most {context_length}, the context of this model",
        )
    num_blocks = max(options.concurrency) * -(-options.max_num_tokens // runner.block_size)
    if num_blocks > runner.num_blocks:
        raise InvalidParameterError(
            "KV cache blocks for the largest test",
            num_blocks,
            f"at most {runner.num_blocks}; a smaller --depth, --concurrency or --new-tokens needs fewer",
        )


def _make_requests(
    runner: Runner, options: BenchmarkOptions, vocab_size: int, concurrency: int, depth: int
) -> list[Request]:
    generator = random.Random(_SEED)
    num_prompt_tokens = depth + options.prompt_tokens
    num_blocks = -(-(num_prompt_tokens + options.new_tokens) // runner.block_size)
    return [
        Request(
            request_id=f"benchmark-{index}",
            prompt_token_ids=tuple(generator.randrange(vocab_size) for _ in range(num_prompt_tokens)),
            params=_GREEDY,
            max_tokens=options.new_tokens + 1,
            seed=_SEED,
            eos_token_ids=frozenset(),
            arrival_s=0.0,
            block_table=list(range(index * num_blocks, (index + 1) * num_blocks)),
        )
        for index in range(concurrency)
    ]


def _schedule(request: Request, start: int, stop: int) -> ScheduledRequest:
    needs_sample = stop == request.num_tokens
    return ScheduledRequest(request, request.get_token_ids(start, stop), start, needs_sample, request.block_table)


def _time(work: Callable[[], None]) -> float:
    start_s = time.perf_counter()
    work()
    return time.perf_counter() - start_s


def _make_rate(num_tokens: int, durations_s: Sequence[float]) -> Rate:
    rates = [num_tokens / duration_s for duration_s in durations_s]
    return Rate(statistics.median(rates), min(rates), max(rates))
