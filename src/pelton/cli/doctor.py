"""`pelton doctor`: what this machine offers and what Pelton makes of it. Start at `doctor`.

Reports, never changes anything; a part that is missing is a line of the report rather than an error.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from pelton.cli import terminal
from pelton.core.config import Environment, read_environment
from pelton.engine.machine import describe_machine, get_version

EXAMPLES = ("pelton doctor", "pelton doctor --json")

_LIBRARIES = ("numpy", "tokenizers", "jinja2", "typer", "rich", "huggingface_hub")


class NativeState(NamedTuple):
    """What the native module can do here; `error` says why it cannot be used, or is None."""

    available: tuple[str, ...] = ()
    detected: str | None = None
    threads: int | None = None
    error: str | None = None


def doctor(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> int:
    """Show CPU, ISA, threads, memory, model cache and versions."""
    environment = read_environment()
    native = inspect_native()
    if native.error is None and environment.isa is not None and environment.isa not in native.available:
        allowed = ", ".join(native.available)
        native = native._replace(error=f"PELTON_ISA is {environment.isa!r}; available on this machine: {allowed}")
    report = make_report(environment, native)
    if json:
        terminal.write_json(report)
    else:
        _print_report(environment, native)
    return 0 if native.error is None else 1


def inspect_native() -> NativeState:
    """Ask the native module which instruction sets it has for this machine, and how many threads it would use."""
    try:
        from pelton._native import available_isas, detect_isa
        from pelton.compute.native import count_default_threads
    except ImportError as error:
        return NativeState(error=f"the native module cannot be loaded: {error}; build it with `pip install .`")
    return NativeState(tuple(available_isas()), detect_isa(), count_default_threads())


def list_cached_models(cache_dir: Path) -> list[tuple[str, int]]:
    """Name (relative to the cache folder) and size in bytes of every file in it; empty if there is no folder."""
    files = (path for path in cache_dir.rglob("*") if path.is_file())
    return sorted((str(path.relative_to(cache_dir)), path.stat().st_size) for path in files)


def make_report(environment: Environment, native: NativeState) -> dict[str, object]:
    """The JSON object of `pelton doctor --json`."""
    machine = describe_machine()
    models = list_cached_models(environment.cache_dir)
    return {
        "machine": dataclasses.asdict(machine),
        "isa": {
            "chosen": environment.isa or native.detected,
            "available": list(native.available),
            "forced_by_environment": environment.isa,
            "error": native.error,
        },
        "threads": native.threads,
        "model_cache": {
            "path": str(environment.cache_dir),
            "files": [{"name": name, "size_bytes": size} for name, size in models],
        },
        "versions": {"pelton": machine.pelton, **{name: get_version(name) for name in _LIBRARIES}},
    }


def _print_report(environment: Environment, native: NativeState) -> None:
    machine = describe_machine()
    models = list_cached_models(environment.cache_dir)
    chosen = environment.isa or native.detected or "none"
    source = "PELTON_ISA" if environment.isa else "best of this machine"
    rows = [
        ("CPU", machine.cpu),
        ("ISA chosen", native.error or f"{chosen} ({source})"),
        ("ISA available", ", ".join(native.available) or "none"),
        ("threads", f"{native.threads or 'unknown'} (this process may use {machine.num_cpus} CPUs)"),
        ("memory", f"{_gib(machine.memory_bytes)}, {_gib(machine.available_memory_bytes)} available"),
        ("model cache", f"{environment.cache_dir}{'' if models else ' (empty)'}"),
        *((f"  {name}", f"{size / 1e6:,.1f} MB") for name, size in models),
        ("system", machine.system),
        ("Python", machine.python),
        ("pelton", machine.pelton + (f", commit {machine.commit[:12]}" if machine.commit else "")),
        ("libraries", ", ".join(f"{name} {get_version(name)}" for name in _LIBRARIES)),
    ]
    width = max(len(name) for name, _ in rows)
    terminal.write_out("".join(f"{name:{width}}  {value}\n" for name, value in rows))


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
