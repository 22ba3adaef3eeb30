"""`pelton bench`: speed of prefill and decode, as a table or JSON. Start at `bench`; `engine/benchmark.py` measures."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from pelton.cli import terminal
from pelton.cli.open_model import ModelOption, make_engine_options, open_llm
from pelton.cli.options import OptionGroup, with_options
from pelton.core.config import EngineConfig
from pelton.engine.benchmark import BenchmarkOptions, BenchmarkResult, run_benchmark
from pelton.engine.machine import describe_machine
from pelton.insight.machine_limits import ThreadLimits, measure_limits, merge_limits
from pelton.insight.roofline import compute_roofline
from pelton.loading.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from pelton.engine.llm import LLM

EXAMPLES = (
    "pelton bench",
    "pelton bench -m model.gguf --depth 0 --concurrency 1 --json",
    "pelton bench --prompt-tokens 16 --new-tokens 1000 --depth 0 --concurrency 1 --repeat 1 --no-kv-cache",
)

BENCHMARK_OPTIONS = OptionGroup.from_dataclass(BenchmarkOptions)
ENGINE_OPTIONS = make_engine_options("max_num_seqs", "max_context", "kv_cache_tokens")


@with_options(BENCHMARK_OPTIONS, ENGINE_OPTIONS)
def bench(
    model: ModelOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    **values: object,
) -> None:
    """Measure prefill and decode speed.

    Random token ids of a fixed seed, a warm-up, then --repeat timed runs: median, least and most tokens per second, and
    the share of what the machine's memory or arithmetic (as `pelton bench machine` measures them) would allow;
    these are measured before and after, and the better value counts. The last columns are the shares of the time that
    the model, sampling and Python took; `pelton bench engine` includes the scheduler and text in the latter.
    """
    options = BENCHMARK_OPTIONS.build(values)
    # A block of the KV cache may be partly empty at the end of every request.
    num_slots = max(options.concurrency) * (options.max_num_tokens + 64)
    config = ENGINE_OPTIONS.build(values, max_num_seqs=max(options.concurrency), kv_cache_tokens=num_slots)
    with open_llm(model, config) as llm, terminal.ProgressBar("bench") as bar:
        limits = _measure_limits(llm)
        results = run_benchmark(
            llm.runner,
            options,
            vocab_size=llm.model_config.vocab_size,
            context_length=llm.context_length,
            max_num_batched_tokens=config.prefill_chunk,
            use_kv_cache=config.use_kv_cache,
            progress=bar.update,
        )
        bar.update(len(results), len(results), "limits of this machine")
        limits = merge_limits(limits, _measure_limits(llm))
        report = make_report(llm, model or DEFAULT_MODEL, config, results, limits)
    if json:
        terminal.write_json(report)
    else:
        _print_results(report, results, limits)


def _measure_limits(llm: LLM) -> ThreadLimits:
    return measure_limits(llm.runner.isa, (llm.runner.num_threads,)).limits[0]


def make_report(
    llm: LLM, model: str, config: EngineConfig, results: list[BenchmarkResult], limits: ThreadLimits
) -> dict[str, object]:
    """The JSON object of a benchmark: what ran where (`model` as it was asked for), and the results."""
    machine = {
        **dataclasses.asdict(describe_machine()),
        "isa": llm.runner.isa,
        "threads": llm.runner.num_threads,
        "use_kv_cache": config.use_kv_cache,
        "kv_cache_dtype": config.kv_cache_dtype,
        "prefill_chunk": config.prefill_chunk,
        "limits": dataclasses.asdict(limits),
    }
    return {
        "machine": machine,
        "model": model,
        "results": [make_row(result, limits) for result in results],
    }


def make_row(result: BenchmarkResult, limits: ThreadLimits) -> dict[str, object]:
    """One result as JSON, with the limit that binds it and how much of it was reached in the median."""
    roofline = compute_roofline(result.cost, limits)
    return {
        **dataclasses.asdict(result),
        "bound": roofline.bound,
        "pct_of_roofline": roofline.compute_pct(result.duration_s),
    }


def _print_results(report: dict[str, object], results: list[BenchmarkResult], limits: ThreadLimits) -> None:
    columns = [("test", False), ("concurrency", True), ("prompt tokens", True), ("new tokens", True), ("depth", True)]
    columns += [("tokens/s median", True), ("min", True), ("max", True), ("% of roofline", True), ("bound", False)]
    columns += [("model %", True), ("sampling %", True), ("Python %", True)]
    rows = []
    for result in results:
        rate = result.tokens_per_s
        counts = (result.concurrency, result.prompt_tokens, result.new_tokens, result.depth)
        rates = (rate.median, rate.min, rate.max)
        roofline = compute_roofline(result.cost, limits)
        reached = [f"{roofline.compute_pct(result.duration_s):.0f}", roofline.bound]
        shares = (result.model_share, result.sample_share, result.python_share)
        cells = [result.test, *(str(count) for count in counts), *(f"{value:.1f}" for value in rates), *reached]
        rows.append(cells + [f"{share * 100:.1f}" for share in shares])
    terminal.print_table("", columns, rows)
    machine = report["machine"]
    assert isinstance(machine, dict)
    cache = "" if machine["use_kv_cache"] else ", no KV cache"
    terminal.write_out(
        f"{report['model']} on {machine['cpu']}, {machine['isa']}, {machine['threads']} threads{cache}; "
        f"limits: {limits.read_bytes_per_s.best / 1e9:.1f} GB/s, int8 {limits.int8_ops_per_s.best / 1e9:.0f} and f32 "
        f"{limits.f32_ops_per_s.best / 1e9:.0f} Gop/s; pelton {machine['pelton']}\n"
    )
