"""`pelton bench machine`: the limits of this machine, as a table or JSON. `insight/machine_limits.py` measures."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Annotated

import typer

from pelton.cli import terminal
from pelton.cli.open_model import make_engine_options
from pelton.cli.options import with_options
from pelton.core.config import EngineConfig, read_environment
from pelton.engine.machine import describe_machine
from pelton.insight.machine_limits import MachineLimits, Measured, ThreadLimits, measure_limits

EXAMPLES = ("pelton bench machine", "pelton bench machine --isa avx2 --threads 1 --json")

_OPTIONS = make_engine_options(*(f.name for f in dataclasses.fields(EngineConfig) if f.name not in ("isa", "threads")))

# Heading, unit, factor, what to show.
_ROWS: tuple[tuple[str, str, float, Callable[[ThreadLimits], Measured | None]], ...] = (
    ("reads from memory", "GB/s", 1e-9, lambda limits: limits.read_bytes_per_s),
    ("int8 dot products", "Gop/s", 1e-9, lambda limits: limits.int8_ops_per_s),
    ("bf16 dot products", "Gop/s", 1e-9, lambda limits: limits.bf16_ops_per_s),
    ("f32 multiply-adds", "Gop/s", 1e-9, lambda limits: limits.f32_ops_per_s),
    ("handing a stage over", "us", 1e6, lambda limits: limits.stage_handoff_s),
)


@with_options(_OPTIONS)
def bench_machine(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
    **values: object,
) -> None:
    """Measure the limits of this machine.

    What one thread and all threads read from memory and compute, at best and in the median, and what it costs to hand
    a stage of a step from thread to thread. Takes a few seconds; nothing else should run.
    """
    # Here and not above: help must not load the native module.
    from pelton.compute.native import choose_isa, choose_threads

    config = _OPTIONS.build(values)
    isa = choose_isa(config.isa or read_environment().isa)
    thread_counts = sorted({1, choose_threads(config.threads)})
    with terminal.ProgressBar("bench machine") as bar:
        limits = measure_limits(isa, thread_counts, bar.update)
    machine = describe_machine()
    if json:
        terminal.write_json({"machine": dataclasses.asdict(machine), **dataclasses.asdict(limits)})
        return
    _print_table(limits)
    buffer = f"memory read from {limits.buffer_bytes / 2**20:.0f} MiB"
    terminal.write_out(f"{machine.cpu}, {limits.isa}; {buffer}; pelton {machine.pelton}\n")


def _print_table(limits: MachineLimits) -> None:
    columns = [("", False), ("unit", False)]
    for each in limits.limits:
        threads = f"{each.num_threads} thread{'s' * (each.num_threads > 1)}"
        columns += [(f"{threads}, best", True), ("median", True)]
    rows = []
    for heading, unit, factor, get in _ROWS:
        cells = [heading, unit]
        for each in limits.limits:
            value = get(each)
            cells += ["none", "none"] if value is None else [f"{x * factor:.2f}" for x in (value.best, value.median)]
        rows.append(cells)
    terminal.print_table("", columns, rows)
