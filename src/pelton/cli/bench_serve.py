"""`pelton bench serve`: a load on a server, as a table, JSON and a picture. `server/load/` makes it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pelton.cli import terminal
from pelton.cli.options import OptionGroup, with_options
from pelton.core.config import read_environment
from pelton.core.errors import ConfigError
from pelton.server.load.options import LoadOptions

if TYPE_CHECKING:
    from pelton.server.load.report import LoadSummary

EXAMPLES = (
    "pelton bench serve --concurrency 64 --num-requests 256",
    "pelton bench serve --rate 4 --prompt-tokens 64-512 --output-tokens 100~0.5 --shared-prefix 0.5",
    "pelton bench serve --url http://localhost:8080/v1 --json --picture load.svg",
)

LOAD_OPTIONS = OptionGroup.from_dataclass(LoadOptions)


@with_options(LOAD_OPTIONS)
def bench_serve(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    picture: Annotated[
        str | None,
        typer.Option("--picture", metavar="FILE", show_default=False, help="Write a picture of all requests (SVG)."),
    ] = None,
    **values: object,
) -> int:
    """Put a load on a server of the OpenAI API and report latencies, throughput and goodput.

    The first of PELTON_API_KEYS is sent along. Exit code 1 if a request failed.
    """
    import asyncio

    from pelton.server.load.picture import draw
    from pelton.server.load.report import summarize
    from pelton.server.load.run import run_load

    options = LOAD_OPTIONS.build(values)
    api_key = (read_environment().api_keys or "").split(",")[0].rpartition(":")[2].strip() or None
    with terminal.ProgressBar("bench serve") as bar:
        load = asyncio.run(run_load(options, api_key, lambda done, total: bar.update(done, total)))
    summary = summarize(load, options)
    if picture is not None:
        try:
            Path(picture).write_text(draw(load, summary, f"{load.model} at {options.url}"), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--picture {picture}: {error.strerror or error}") from error
    if json:
        terminal.write_json(
            {"options": dataclasses.asdict(options), "model": load.model, "summary": dataclasses.asdict(summary)}
        )
    else:
        _print_summary(summary, options)
    return 1 if summary.num_failed else 0


def _print_summary(summary: LoadSummary, options: LoadOptions) -> None:
    columns = [("milliseconds", False), ("mean", True), ("p50", True), ("p90", True), ("p99", True)]
    rows = [
        [name, *(f"{value:.2f}" for value in (p.mean, p.p50, p.p90, p.p99))]
        for name, p in (
            ("TTFT", summary.ttft_ms),
            ("ITL", summary.itl_ms),
            ("TPOT", summary.tpot_ms),
            ("whole request", summary.latency_ms),
        )
    ]
    terminal.print_table("", columns, rows)
    arrivals = f"{options.concurrency} clients" if options.rate is None else f"{options.rate:g} requests/s"
    terminal.write_out(
        f"{summary.num_requests} requests, {summary.num_failed} failed, {arrivals}, {summary.duration_s:.2f} s; "
        f"{summary.prompt_tokens} prompt tokens ({summary.cached_tokens} cached), "
        f"{summary.output_tokens} output tokens\n"
        f"{summary.output_tokens_per_s:.1f} output tokens/s, {summary.total_tokens_per_s:.1f} tokens/s in all, "
        f"{summary.requests_per_s:.2f} requests/s; goodput {summary.goodput_per_s:.2f} requests/s "
        f"({summary.good_share:.0%} within TTFT {options.slo_ttft_ms:g} ms and TPOT {options.slo_tpot_ms:g} ms)\n"
    )
    for error, count in summary.errors.items():
        terminal.write_error(f"pelton: {count} x {error}")
