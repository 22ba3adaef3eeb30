"""Speed of the whole engine with many readers: scheduling, model, sampling, text, queues and an event loop.

Unlike `benchmark.py`, which drives the runner alone, this sends requests through the engine thread, all at once, and
measures what their readers see. Random token ids of a fixed seed; the prefix cache is off. Start at
`run_engine_benchmark`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from pelton.core.config import EngineConfig
from pelton.core.errors import ContextLengthError, InvalidParameterError
from pelton.core.fields import check_number_types, check_option, get_option_specs, option, validate_options
from pelton.core.percentile import get_percentile
from pelton.core.sampling_params import SamplingParams
from pelton.engine.core import EngineCore, Runner
from pelton.engine.engine_thread import EngineThread
from pelton.engine.output_queue import OutputQueue
from pelton.engine.prepare import PreparedRequest
from pelton.engine.prompts import EncodedPrompt
from pelton.engine.requests import RequestTable
from pelton.engine.stats import EngineStats
from pelton.text.tokenizer import Tokenizer

_SEED = 1
_NUM_WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBenchmarkOptions:
    """What to measure, validated on construction (`InvalidParameterError`)."""

    prompt_tokens: int = option(128, "Prompt tokens per request.", minimum=1, maximum=2**20, unit="tokens")
    new_tokens: int = option(128, "Tokens to generate per request.", minimum=2, maximum=2**20, unit="tokens")
    concurrency: tuple[int, ...] = option((1, 64), "Requests at once; each value is a test.", minimum=1, maximum=4096)

    def __post_init__(self) -> None:
        check_number_types(self, ("prompt_tokens", "new_tokens"), ())
        validate_options(self)
        if not self.concurrency:
            raise InvalidParameterError("concurrency", self.concurrency, "at least one value")
        for value in self.concurrency:
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidParameterError("concurrency", value, "integers")
            check_option("concurrency", value, get_option_specs(EngineBenchmarkOptions)["concurrency"])


@dataclass(frozen=True, slots=True)
class EngineBenchmarkResult:
    """One test. Rates count new tokens of all requests, `tokens_per_s` over everything, `decode_tokens_per_s` from the
    moment on when all prompts were computed.

    Gaps lie between two outputs of one request, as its reader saw them. Shares (0 to 1) are of the wall time, in which
    the engine was never idle: the model, sampling, and all the rest, which is Python.
    """

    concurrency: int
    prompt_tokens: int
    new_tokens: int
    tokens_per_s: float
    decode_tokens_per_s: float
    ttft_median_ms: float
    gap_median_ms: float
    gap_longest_ms: float
    model_share: float
    sample_share: float
    python_share: float


def run_engine_benchmark(
    runner: Runner,
    tokenizer: Tokenizer,
    config: EngineConfig,
    options: EngineBenchmarkOptions,
    *,
    vocab_size: int,
    context_length: int,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[EngineBenchmarkResult]:
    """Measure every concurrency once; `progress` is called before each and at the end.

    The runner's KV cache is overwritten, so nothing else may run. Raises `ContextLengthError` if a request exceeds
    `context_length`.
    """
    num_tokens = options.prompt_tokens + options.new_tokens
    if num_tokens > context_length:
        raise ContextLengthError("--prompt-tokens + --new-tokens", num_tokens, f"at most {context_length}, the context")
    results = []
    for done, concurrency in enumerate(options.concurrency):
        if progress is not None:
            progress(done, len(options.concurrency), f"concurrency {concurrency}")
        config = dataclasses.replace(
            config, max_num_seqs=concurrency, max_queued_requests=None, max_queued_tokens=None, use_prefix_cache=False
        )
        table = RequestTable(EngineCore(runner, config), tokenizer, context_length=context_length, load_ms=0.0)
        thread = EngineThread(table, config)
        thread.start()
        try:
            asyncio.run(_run(thread, _make_requests(options, concurrency, vocab_size, _NUM_WARM_UP_TOKENS)))
            requests = _make_requests(options, concurrency, vocab_size, options.new_tokens)
            results.append(asyncio.run(_measure(thread, requests, options)))
        finally:
            thread.close()
    if progress is not None:
        progress(len(results), len(results), "")
    return results


async def _measure(
    thread: EngineThread, requests: list[PreparedRequest], options: EngineBenchmarkOptions
) -> EngineBenchmarkResult:
    before, start_s = thread.stats, time.perf_counter()
    times = await _run(thread, requests)
    wall_s = time.perf_counter() - start_s
    after = thread.stats
    assert after.num_new_tokens - before.num_new_tokens == len(requests) * options.new_tokens
    gaps_ms = sorted((b[0] - a[0]) * 1e3 for each in times for a, b in itertools.pairwise(each))
    all_started_s = max(each[0][0] for each in times)
    num_later = sum(num_tokens for each in times for at_s, num_tokens in each if at_s > all_started_s)
    later_s = max(each[-1][0] for each in times) - all_started_s
    return EngineBenchmarkResult(
        concurrency=len(requests),
        prompt_tokens=options.prompt_tokens,
        new_tokens=options.new_tokens,
        tokens_per_s=len(requests) * options.new_tokens / wall_s,
        decode_tokens_per_s=num_later / later_s if later_s > 0 else 0.0,
        ttft_median_ms=get_percentile(sorted((each[0][0] - start_s) * 1e3 for each in times), 0.5),
        gap_median_ms=get_percentile(gaps_ms, 0.5) if gaps_ms else 0.0,
        gap_longest_ms=gaps_ms[-1] if gaps_ms else 0.0,
        **_compute_shares(before, after, wall_s),
    )


def _compute_shares(before: EngineStats, after: EngineStats, wall_s: float) -> dict[str, float]:
    model = (after.model_s - before.model_s) / wall_s
    sample = (after.sample_s - before.sample_s) / wall_s
    return {"model_share": model, "sample_share": sample, "python_share": 1.0 - model - sample}


async def _run(thread: EngineThread, requests: list[PreparedRequest]) -> list[list[tuple[float, int]]]:
    """Times of each request's outputs (`time.perf_counter()`) with their number of tokens."""
    return await asyncio.gather(*(_read(thread, request) for request in requests))


async def _read(thread: EngineThread, request: PreparedRequest) -> list[tuple[float, int]]:
    queue = OutputQueue()
    thread.submit(request, queue, is_streamed=True)
    times = []
    while True:
        output = await queue.get()
        times.append((time.perf_counter(), len(output.new_token_ids)))
        if output.result is not None:
            return times


def _make_requests(
    options: EngineBenchmarkOptions, concurrency: int, vocab_size: int, num_new_tokens: int
) -> list[PreparedRequest]:
    generator = random.Random(_SEED)
    params = SamplingParams(max_tokens=num_new_tokens, temperature=0.8, top_p=0.95, seed=_SEED, ignore_eos=True)
    return [
        PreparedRequest(
            EncodedPrompt(
                tuple(generator.randrange(vocab_size) for _ in range(options.prompt_tokens)), time.perf_counter(), 0.0
            ),
            params,
        )
        for _ in range(concurrency)
    ]
