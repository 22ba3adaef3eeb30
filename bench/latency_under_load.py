"""What others cost a request: ITL beside a long prompt, and TTFT when a prefix is cached.

    python bench/latency_under_load.py MODEL.gguf

Runs `AsyncEngine` with its default options: eight streams generate, first alone, then while a prompt of 4,000 tokens is
computed; then a prompt with a prefix of 1,500 tokens comes twice, and one that shares 20 tokens with it. Prints
milliseconds and ratios. Start at `main`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from pathlib import Path

from pelton.core.outputs import GenerationResult
from pelton.core.percentile import get_percentile
from pelton.core.sampling_params import SamplingParams
from pelton.engine.async_engine import AsyncEngine

NUM_STREAMS = 8
QUIET_TOKENS = 200
LONG_PROMPT_TOKENS = 4000
PREFIX_TOKENS = 1500
SHARED_TOKENS = 20


def make_prompt(seed: int, num_tokens: int) -> list[int]:
    """Random token ids between those of control tokens and 40,000."""
    rng = random.Random(seed)
    return [rng.randrange(1000, 40_000) for _ in range(num_tokens)]


async def read(
    engine: AsyncEngine, prompt: list[int], num_tokens: int, times: list[float] | None = None
) -> GenerationResult:
    """Generate and return the result; `times` gains the seconds at which outputs came."""
    params = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
    result: GenerationResult | None = None
    async for output in engine.generate(prompt, params):
        result = output.result
        if times is not None:
            times.append(time.perf_counter())
    assert result is not None
    return result


def list_gaps_ms(times: list[list[float]], start_s: float, end_s: float) -> list[float]:
    """Sorted gaps between outputs of one stream that lie between two moments."""
    return sorted((b - a) * 1e3 for each in times for a, b in itertools.pairwise(each) if start_s <= a and b <= end_s)


async def measure_itl(engine: AsyncEngine) -> None:
    """Eight streams with and without a long prompt beside them."""
    times: list[list[float]] = [[] for _ in range(NUM_STREAMS)]
    readers = [asyncio.create_task(read(engine, make_prompt(i, 100), 3000, times[i])) for i in range(NUM_STREAMS)]
    while min(len(each) for each in times) < QUIET_TOKENS:
        await asyncio.sleep(0.01)
    start_s = max(each[20] for each in times)
    arrival_s = time.perf_counter()
    await read(engine, make_prompt(99, LONG_PROMPT_TOKENS), 1)
    end_s = time.perf_counter()
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    quiet, beside = list_gaps_ms(times, start_s, arrival_s), list_gaps_ms(times, arrival_s, end_s)
    quiet_p99, beside_p99 = get_percentile(quiet, 0.99), get_percentile(beside, 0.99)
    print(f"ITL of {NUM_STREAMS} streams, ms: median {get_percentile(quiet, 0.5):.1f}, p99 {quiet_p99:.1f}")
    print(f"beside a prompt of {LONG_PROMPT_TOKENS}: median {get_percentile(beside, 0.5):.1f}, p99 {beside_p99:.1f}")
    print(f"p99 ratio {beside_p99 / quiet_p99:.2f} (wanted: below 3); TTFT of the prompt {end_s - arrival_s:.1f} s")


async def measure_prefix(engine: AsyncEngine) -> None:
    """A prefix computed, then found again, whole and in part."""
    prefix = make_prompt(7, PREFIX_TOKENS)
    cold = await read(engine, [*prefix, 1001, 1002], 1)
    warm = await read(engine, [*prefix, 1003, 1004], 1)
    short = await read(engine, [*prefix[:SHARED_TOKENS], *make_prompt(8, 30)], 1)
    ratio = cold.timings.ttft_ms / warm.timings.ttft_ms
    print(f"TTFT of {PREFIX_TOKENS} + 2 tokens, ms: cold {cold.timings.ttft_ms:.1f}, again {warm.timings.ttft_ms:.1f}")
    print(f"ratio {ratio:.1f} (wanted: at least 10); tokens reused {warm.usage.cached_tokens}")
    print(f"of a prompt that shares {SHARED_TOKENS} tokens: {short.usage.cached_tokens} reused")


async def main(model: Path) -> None:
    """Both measurements on one engine."""
    async with AsyncEngine(model) as engine:
        await read(engine, make_prompt(5, 600), 20)
        await measure_prefix(engine)
        await measure_itl(engine)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
