"""`pelton bench engine`: requests through the whole engine, as table or JSON; `engine/engine_benchmark.py` measures."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from pelton.cli import terminal
from pelton.cli.open_model import ModelOption, make_engine_options, open_llm
from pelton.cli.options import OptionGroup, with_options
from pelton.engine.engine_benchmark import EngineBenchmarkOptions, EngineBenchmarkResult, run_engine_benchmark
from pelton.engine.machine import describe_machine
from pelton.loading.catalog import DEFAULT_MODEL

EXAMPLES = ("pelton bench engine", "pelton bench engine -m model.gguf --concurrency 1,8,64 --json")

BENCHMARK_OPTIONS = OptionGroup.from_dataclass(EngineBenchmarkOptions)
ENGINE_OPTIONS = make_engine_options("max_num_seqs", "max_context", "kv_cache_tokens", "kv_cache_memory")


@with_options(BENCHMARK_OPTIONS, ENGINE_OPTIONS)
def bench_engine(
    model: ModelOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    **values: object,
) -> None:
    """Measure the engine with many readers.

    Sends requests with random prompts through the engine thread, all at once: tokens per second, what their readers
    wait between two tokens, and the shares of the time that the model, sampling and Python take.
    """
    options = BENCHMARK_OPTIONS.build(values)
    # A block of the KV cache may be partly empty at the end of every request.
    num_slots = max(options.concurrency) * (options.prompt_tokens + options.new_tokens + 64)
    config = ENGINE_OPTIONS.build(values, max_num_seqs=max(options.concurrency), kv_cache_tokens=num_slots)
    with open_llm(model, config) as llm, terminal.ProgressBar("bench engine") as bar:
        results = run_engine_benchmark(
            llm.runner,
            llm.tokenizer,
            config,
            options,
            vocab_size=llm.model_config.vocab_size,
            context_length=llm.context_length,
            progress=bar.update,
        )
        machine = {**dataclasses.asdict(describe_machine()), "isa": llm.runner.isa, "threads": llm.runner.num_threads}
    name = model or DEFAULT_MODEL
    if json:
        rows = [dataclasses.asdict(result) for result in results]
        terminal.write_json({"machine": machine, "model": name, "results": rows})
        return
    _print_results(results)
    terminal.write_out(
        f"{name} on {machine['cpu']}, {machine['isa']}, {machine['threads']} threads; pelton {machine['pelton']}\n"
    )


def _print_results(results: list[EngineBenchmarkResult]) -> None:
    headings = ["concurrency", "prompt tokens", "new tokens", "tokens/s", "decode tokens/s", "TTFT median ms"]
    headings += ["gap median ms", "longest", "model %", "sampling %", "Python %"]
    rows = []
    for result in results:
        counts = (result.concurrency, result.prompt_tokens, result.new_tokens)
        rates = (result.tokens_per_s, result.decode_tokens_per_s, result.ttft_median_ms)
        gaps = (result.gap_median_ms, result.gap_longest_ms)
        shares = (result.model_share, result.sample_share, result.python_share)
        cells = [str(count) for count in counts]
        cells += [f"{rate:.1f}" for rate in rates]
        cells += [f"{gap:.2f}" for gap in gaps]
        rows.append(cells + [f"{share * 100:.1f}" for share in shares])
    terminal.print_table("", [(heading, True) for heading in headings], rows)
