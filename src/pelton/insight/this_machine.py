"""This machine as `MeasuredMachine`: measured once, kept on disk with the machine's identity, measured anew on demand.

What is missing for a model (a weight format, a KV type) is measured when it is first asked for. Start at
`open_this_machine`; `find_this_machine` never measures.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pelton.core.config import KV_CACHE_DTYPES, read_environment
from pelton.core.errors import ConfigError
from pelton.insight.kernel_rates import AttendRates, LinearRates, measure_attend, measure_linear
from pelton.insight.machine_limits import Measured, ThreadLimits, measure_limits, read_l3_bytes
from pelton.insight.machine_rates import MeasuredMachine, TableMachine
from pelton.insight.model_shape import GroupedAttention
from pelton.insight.prediction import Planned
from pelton.insight.weight_formats import WEIGHT_FORMATS

if TYPE_CHECKING:
    from pelton._native import ThreadPool

_FILE_NAME = "machine_rates.json"
# Raise when what is stored is measured in another way.
_FILE_VERSION = 2

# Plain names by the block type whose kernels they would run on.
_MEASURED_AS = {"int8": "q8_0", "int4": "q4_0"}
# Query heads per key/value head of the model that is suggested where there is one.
SUGGESTED_GROUP = 8
_NO_KERNELS = "Pelton has no kernels, so that nothing can be measured here, for"
_HINT = "--machine NAME plans from published limits, --weights and --kv-cache-dtype take another format"

# Called with what is measured next.
MeasureCallback = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Needs:
    """What must be measured: weight formats, and KV types with the groups of query heads per key/value head."""

    format_names: frozenset[str]
    attends: frozenset[tuple[str, int]]

    def list_keys(self) -> list[str]:
        """The names under which all of it is stored, in the order in which it is measured."""
        linears = [f"linear {name}" for name in sorted(self.format_names)]
        return ["limits", *linears, *(f"attend {kv_type} {group}" for kv_type, group in sorted(self.attends))]


def list_needs(planned: Planned) -> Needs:
    """What predictions for a model need, and those for the changes that `plan_changes.py` weighs.

    Raises `ConfigError` for what Pelton has no kernels for.
    """
    own = list_own_needs(planned)
    groups = {group for _, group in own.attends}
    if groups == {1}:
        groups.add(SUGGESTED_GROUP)
    kv_types = {planned.kv.name, "int8"}
    attends = frozenset((kv_type, group) for kv_type in kv_types for group in groups)
    return Needs(own.format_names | {"q4_0"}, attends)


def list_own_needs(planned: Planned) -> Needs:
    """What predictions for a model as it is need; raises as `list_needs` does."""
    shape = planned.shape
    names = {planned.formats.get(each.name, each.role).name for each in shape.list_matrices()}
    missing = sorted(name for name in names if name not in _MEASURED_AS and WEIGHT_FORMATS[name].block_type is None)
    if missing:
        raise ConfigError(f"{_NO_KERNELS} weights in {', '.join(missing)}; {_HINT}")
    groups = set()
    for layer in shape.layers:
        attention = layer.attention
        if not isinstance(attention, GroupedAttention):
            raise ConfigError(f"{_NO_KERNELS} the attention of {shape.model_type}; {_HINT}")
        groups.add(attention.num_heads // attention.num_kv_heads)
    if planned.kv.name not in KV_CACHE_DTYPES:
        raise ConfigError(f"{_NO_KERNELS} a KV cache in {planned.kv.name}; {_HINT}")
    formats = frozenset(_MEASURED_AS.get(name, name) for name in names)
    return Needs(formats, frozenset((planned.kv.name, group) for group in groups))


def open_this_machine(
    needs: Needs,
    *,
    threads: int | None = None,
    isa: str | None = None,
    measure_anew: bool = False,
    progress: MeasureCallback | None = None,
) -> MeasuredMachine:
    """Rates of this machine for `needs`. Takes a few seconds for what is not stored yet.

    `isa` and `threads` are chosen as an engine chooses them if they are not given. Raises `ConfigError` for too many
    threads, an instruction set this machine does not have, and a store that cannot be written.
    """
    # Here and not above: named machines must not load the native module.
    from pelton._native import ThreadPool
    from pelton.compute.native import choose_isa, choose_threads

    isa = choose_isa(isa or read_environment().isa)
    num_threads = choose_threads(threads)
    identity = _describe_identity(isa, num_threads)
    path = read_environment().cache_dir / _FILE_NAME
    stored = {} if measure_anew else _load(path, identity)
    if not stored.keys() >= set(needs.list_keys()):
        _measure_missing(stored, needs, ThreadPool(num_threads), isa, progress or (lambda what: None))
        _save(path, identity, stored)
    return _make_machine(stored, needs, identity, path)


def find_this_machine(needs: Needs, isa: str, num_threads: int, cache_dir: Path) -> MeasuredMachine | None:
    """Rates of this machine as they are stored in `cache_dir`: None if one of `needs` is missing. Measures nothing."""
    path = cache_dir / _FILE_NAME
    identity = _describe_identity(isa, num_threads)
    stored = _load(path, identity)
    return _make_machine(stored, needs, identity, path) if stored.keys() >= set(needs.list_keys()) else None


def open_limits(isa: str | None, threads: int | None, progress: MeasureCallback | None = None) -> StoredLimits:
    """The limits of this machine alone, which take a second or two unless they are stored; raises as
    `open_this_machine` does.
    """
    machine = open_this_machine(Needs(frozenset(), frozenset()), threads=threads, isa=isa, progress=progress)
    return StoredLimits(machine.title, machine.limits)


def estimate_machine(stored: StoredLimits) -> TableMachine:
    """This machine as predictions take it while only its limits are known: at the shares of them that Pelton reaches.

    Less exact than rates that were measured (docs/plan.md).
    """
    source = "estimated from its limits; `pelton plan` measures its rates"
    ops_per_s = stored.limits.f32_ops_per_s.best
    return TableMachine("this", stored.title, source, "cpu", stored.limits, None, ops_per_s)


def _make_machine(
    stored: Mapping[str, Any],  # Any: see `_load`
    needs: Needs,
    identity: Mapping[str, object],
    path: Path,
) -> MeasuredMachine:
    from pelton.execution.kv_size import read_free_bytes

    linear = {name: _read_linear(stored[f"linear {name}"]) for name in sorted(needs.format_names)}
    for name, measured_as in _MEASURED_AS.items():
        if measured_as in linear:
            linear[name] = linear[measured_as]
    return MeasuredMachine(
        title=_make_title(identity),
        source=f"measured here, kept in {path}",
        limits=_read_limits(stored["limits"]),
        memory_bytes=read_free_bytes(),
        linear=linear,
        attend={
            (kv_type, group): AttendRates(**stored[f"attend {kv_type} {group}"]) for kv_type, group in needs.attends
        },
    )


@dataclass(frozen=True, slots=True)
class StoredLimits:
    """Limits that were measured on this machine earlier; `title` says in words which machine and threads."""

    title: str
    limits: ThreadLimits


def find_stored_limits(isa: str, num_threads: int) -> StoredLimits | None:
    """Limits of this machine with `num_threads` threads if they are stored; measures nothing."""
    identity = _describe_identity(isa, num_threads)
    stored = _load(read_environment().cache_dir / _FILE_NAME, identity)
    return StoredLimits(_make_title(identity), _read_limits(stored["limits"])) if "limits" in stored else None


def _make_title(identity: Mapping[str, object]) -> str:
    threads = identity["threads"]
    return f"this machine ({identity['cpu']}, {identity['isa']}, {threads} thread{'s' * (threads != 1)})"


def _measure_missing(
    stored: dict[str, Any],  # Any: see `_load`
    needs: Needs,
    pool: ThreadPool,
    isa: str,
    report: MeasureCallback,
) -> None:
    if "limits" not in stored:
        report("limits")
        stored["limits"] = dataclasses.asdict(measure_limits(isa, (pool.num_threads,)).limits[0])
    for name in sorted(needs.format_names):
        if f"linear {name}" not in stored:
            report(f"linears in {name}")
            stored[f"linear {name}"] = dataclasses.asdict(measure_linear(pool, isa, name))
    for kv_type, group in sorted(needs.attends):
        if f"attend {kv_type} {group}" not in stored:
            report(f"attention over {kv_type}")
            stored[f"attend {kv_type} {group}"] = dataclasses.asdict(measure_attend(pool, isa, kv_type, group))


def _describe_identity(isa: str, num_threads: int) -> dict[str, object]:
    """What must be the same for stored rates to hold."""
    from pelton import __version__

    cpu = "unknown"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "version": _FILE_VERSION,
        "pelton": __version__,
        "cpu": cpu,
        "num_cpus": os.cpu_count(),
        "l3_bytes": read_l3_bytes(),
        "isa": isa,
        "threads": num_threads,
    }


def _load(path: Path, identity: dict[str, object]) -> dict[str, Any]:  # Any: JSON of this module's own making
    """What is stored for this very machine; nothing if the file is another's, or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["identity"] != identity:
            return {}
        rates: dict[str, Any] = content["rates"]  # Any: see above
        _check(rates)
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return rates


def _check(rates: dict[str, Any]) -> None:  # Any: see `_load`
    """Raise what `_load` catches for rates of another shape."""
    for key, value in rates.items():
        if key == "limits":
            _read_limits(value)
        elif key.startswith("linear "):
            _read_linear(value)
        else:
            AttendRates(**value)


def _save(path: Path, identity: dict[str, object], rates: dict[str, Any]) -> None:  # Any: see `_load`
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps({"identity": identity, "rates": rates}, indent=1), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise ConfigError(
            f"the rates of this machine cannot be kept in {path}: {error.strerror or error}; PELTON_CACHE sets another "
            "folder"
        ) from error


def _read_limits(value: dict[str, Any]) -> ThreadLimits:  # Any: see `_load`
    fields: dict[str, Any] = {  # Any: see `_load`
        key: Measured(**each) if isinstance(each, dict) else each for key, each in value.items()
    }
    return ThreadLimits(**fields)


def _read_linear(value: dict[str, Any]) -> LinearRates:  # Any: see `_load`
    return LinearRates(tuple(tuple(each) for each in value["seconds"]), value["rest_s_one"], value["rest_s_many"])
