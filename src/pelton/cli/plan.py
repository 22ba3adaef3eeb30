"""`pelton plan`: memory, requests that fit, TTFT and ITL of a model before it is loaded. Start at `plan`.

`insight/plan.py` plans; this file reads the options and prints. Nothing heavy is imported for a preset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import typer

from pelton.cli import terminal
from pelton.cli.options import OptionGroup, with_options
from pelton.cli.plan_report import make_plan_json, print_plan
from pelton.core.config import read_environment
from pelton.core.errors import InvalidParameterError
from pelton.core.fields import check_number_types, option, validate_options
from pelton.core.memory_size import parse_memory_size
from pelton.insight.kv_layout import KvFormat
from pelton.insight.machine_rates import THIS_MACHINE, MachineRates, find_machine
from pelton.insight.model_source import ModelSource, open_model
from pelton.insight.plan import PlanOptions, make_plan
from pelton.insight.plan_changes import find_changes
from pelton.insight.prediction import Planned
from pelton.insight.weight_formats import ModelFormats

EXAMPLES = (
    "pelton plan llama-3.1-8b --machine h100",
    "pelton plan llama-2-13b --weights int4 --kv-cache-dtype int8 --memory 24GiB --machine rtx-4090",
    "pelton plan model.gguf --users 8 --context 4096",
    "pelton plan deepseek-v4-pro --context 1000000 --machine h200 --memory 1128GB --json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTarget:
    """How the model is to be run, and on what, as the options say it."""

    weights: str | None = option(
        None,
        "Format of all weights: f32, f16, bf16, int8, int4, fp8, mxfp4 or a GGUF block type (q4_0, q4_k); unset takes "
        "the file's or the published one.",
    )
    kv_cache_dtype: str | None = option(
        None,
        "Type of stored keys and values: f16, bf16, f32, int8, int4, or mixed for DeepSeek's latents; unset takes f16, "
        "or mixed where there are latents.",
    )
    memory: str | None = option(
        None, "Memory there is: bytes, with a unit (24GiB), or a share of the machine's (50%); unset takes all."
    )
    machine: str = option(THIS_MACHINE, "this (measured once), or one known by its published limits.")
    threads: int | None = option(
        None, "Threads of this machine; unset takes one per physical core.", minimum=1, maximum=1024
    )

    def __post_init__(self) -> None:
        check_number_types(self, ("threads",), ())
        validate_options(self)


PLAN_OPTIONS = OptionGroup.from_dataclass(PlanOptions)
TARGET_OPTIONS = OptionGroup.from_dataclass(PlanTarget)


def complete_preset(incomplete: str) -> list[str]:
    """Names for tab completion."""
    from pelton.insight.presets import list_presets

    return [name for name in list_presets() if name.startswith(incomplete)]


@with_options(PLAN_OPTIONS, TARGET_OPTIONS)
def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            autocompletion=complete_preset,
            help="A .gguf file, a config.json, hf:org/repo (its config.json alone is fetched) or a preset "
            "(llama-3.1-8b).",
        ),
    ],
    measure: Annotated[bool, typer.Option("--measure", help="Measure this machine anew.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    **values: object,
) -> None:
    """Say what a model will take and how fast it will be, before it is loaded.

    Memory by part, how many requests fit, predicted TTFT and ITL with the bound that rules each, and the changes that
    would help most.
    """
    options, target = PLAN_OPTIONS.build(values), TARGET_OPTIONS.build(values)
    source = open_model(model, read_environment().cache_dir)
    with _naming_flags():
        planned = _choose_formats(source, target)
        rates = _choose_machine(target, planned, measure)
        made = make_plan(planned, rates, options, _choose_memory(target.memory, rates))
    changes = find_changes(made)
    if json:
        terminal.write_json(make_plan_json(source, made, changes))
    else:
        print_plan(source, made, changes)


@contextlib.contextmanager
def _naming_flags() -> Iterator[None]:
    """Errors about parameters name the flag."""
    try:
        yield
    except InvalidParameterError as error:
        flag = error.parameter if error.parameter.startswith("--") else "--" + error.parameter.replace("_", "-")
        raise InvalidParameterError(flag, error.value, error.allowed) from error


def _choose_formats(source: ModelSource, target: PlanTarget) -> Planned:
    formats = source.formats if target.weights is None else ModelFormats.make_uniform(target.weights)
    return Planned(source.shape, formats, KvFormat(target.kv_cache_dtype or source.kv_cache_dtype))


def _choose_machine(target: PlanTarget, planned: Planned, measure: bool) -> MachineRates:
    """The machine of the table, or this one with what the model needs measured."""
    name, threads = target.machine, target.threads
    if name.lower() != THIS_MACHINE:
        for flag, value in (("threads", threads), ("measure", measure or None)):
            if value is not None:
                raise InvalidParameterError(flag, value, f"unset beside --machine {name}: they are about this machine")
        return find_machine(name)
    # Here and not above: a named machine must not pay for the native module.
    from pelton.insight.this_machine import list_needs, open_this_machine

    with terminal.ProgressBar("measuring this machine") as bar:
        return open_this_machine(
            list_needs(planned), threads=threads, measure_anew=measure, progress=lambda what: bar.update(0, None, what)
        )


def _choose_memory(memory: str | None, machine: MachineRates) -> int | None:
    if memory is None:
        return None
    size = parse_memory_size("memory", memory)
    if size.share is not None and machine.memory_bytes is None:
        raise InvalidParameterError("memory", memory, f"a size in bytes: the memory of {machine.title} is not known")
    return size.compute_bytes(machine.memory_bytes or 0)
