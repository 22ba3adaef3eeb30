"""How long linears, attention and the rest take on a machine: published limits, or what was measured here.

A `MachineRates` is what `prediction.py` needs of a machine. Named machines are a table, `machines.json`, as data with
its sources. Start at `find_machine`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pelton.core.errors import InvalidParameterError
from pelton.insight.kernel_rates import AttendRates, LinearRates
from pelton.insight.machine_limits import Measured, ThreadLimits
from pelton.insight.nearest import suggest

_TABLE = Path(__file__).with_name("machines.json")
THIS_MACHINE = "this"

# The shares of its limits that Pelton reached where all was measured (docs/performance.md, table of the phases): the
# linears of decode and of prefill, attention of decode and of prefill. Used for processors that are only known from the
# table; for this machine everything is measured.
SHARE_OF_MEMORY = 0.60
SHARE_OF_INT8 = 0.59
SHARE_OF_F32_DECODE = 0.25
SHARE_OF_F32_PREFILL = 0.70


@dataclass(frozen=True, slots=True)
class AttendOp:
    """One layer's attention: `group` query heads per key/value head over a KV type, in a step of `step_bytes`."""

    kv_name: str
    group: int
    is_decode: bool
    num_bytes: float
    num_ops: float
    step_bytes: float


@dataclass(frozen=True, slots=True)
class LinearOp:
    """One matrix in a weight format and `num_rows` rows, in a step that reads `step_bytes` in all."""

    format_name: str
    num_bytes: float
    num_ops: float
    num_rows: float
    step_bytes: float


class MachineRates(Protocol):
    """Seconds of parts of a step. `limits` are the roofline's; `memory_bytes` None where it is not known.

    `runs_pelton` says whether Pelton runs there; elsewhere times are no more than lower bounds.
    """

    @property
    def title(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def limits(self) -> ThreadLimits: ...
    @property
    def memory_bytes(self) -> int | None: ...
    @property
    def runs_pelton(self) -> bool: ...
    def predict_linear(self, op: LinearOp) -> float:
        """Seconds of one layer's linear in one step."""
        ...

    def predict_attend(self, op: AttendOp) -> float:
        """Seconds of one layer's attention."""
        ...

    def predict_rest(self, num_elements: float, num_rows: float) -> float:
        """Seconds of the work row by row, over `num_elements` values in `num_rows` rows."""
        ...

    def predict_overhead(self, num_requests: int) -> float:
        """Seconds of a step outside the model: planning, sampling."""
        ...


@dataclass(frozen=True, slots=True)
class TableMachine:
    """A machine known from published limits.

    A processor is predicted at the shares of its limits that Pelton reaches; for what Pelton does not run on, the times
    are the limits themselves: nothing can be faster.
    """

    name: str
    title: str
    source: str
    kind: Literal["gpu", "soc", "cpu"]
    limits: ThreadLimits
    memory_bytes: int | None
    float_ops_per_s: float

    @property
    def runs_pelton(self) -> bool:
        """Whether it is a processor."""
        return self.kind == "cpu"

    def predict_linear(self, op: LinearOp) -> float:
        """The longer of memory and arithmetic."""
        is_float = op.format_name in ("f32", "f16", "bf16")
        peak = self.float_ops_per_s if is_float else self.limits.int8_ops_per_s.best
        memory, arithmetic = (SHARE_OF_MEMORY, SHARE_OF_INT8) if self.runs_pelton else (1.0, 1.0)
        return max(op.num_bytes / (memory * self.limits.read_bytes_per_s.best), op.num_ops / (arithmetic * peak))

    def predict_attend(self, op: AttendOp) -> float:
        """The longer of memory and arithmetic."""
        share = 1.0
        if self.runs_pelton:
            share = SHARE_OF_F32_DECODE if op.is_decode else SHARE_OF_F32_PREFILL
        return max(op.num_bytes / self.limits.read_bytes_per_s.best, op.num_ops / (share * self.float_ops_per_s))

    def predict_rest(self, num_elements: float, num_rows: float) -> float:
        """Nothing: it works in the caches."""
        return 0.0

    def predict_overhead(self, num_requests: int) -> float:
        """Nothing that the table could say."""
        return 0.0


# What a step takes besides its nodes (planning, sampling, waking the threads), and what each request adds to it: steps
# of 1 to 32 requests took 0.5 to 2.6 ms more than their nodes on a Xeon, and on an EPYC 0.1 to 1.2 ms, the engine's own
# Python and sampling at a temperature not included (docs/log.d/plan.md).
STEP_OVERHEAD_S = 0.7e-3
REQUEST_OVERHEAD_S = 50e-6


@dataclass(frozen=True, slots=True)
class MeasuredMachine:
    """This machine: its limits, and the rates of its kernels by weight format, and by KV type and group."""

    title: str
    source: str
    limits: ThreadLimits
    memory_bytes: int | None
    linear: dict[str, LinearRates]
    attend: dict[tuple[str, int], AttendRates]

    @property
    def runs_pelton(self) -> bool:
        """Where it was measured."""
        return True

    def predict_linear(self, op: LinearOp) -> float:
        """Measured seconds per weight at that many rows."""
        if not op.num_rows:
            return 0.0
        return op.num_ops / (2.0 * op.num_rows) * self.linear[op.format_name].predict(op.num_rows, op.step_bytes)

    def predict_attend(self, op: AttendOp) -> float:
        """Measured operations per second."""
        rate = self.attend[op.kv_name, op.group].predict(op.is_decode, op.step_bytes)
        return op.num_ops / rate

    def predict_rest(self, num_elements: float, num_rows: float) -> float:
        """Between the measured costs of one row and of many: means over the formats, which it does not depend on."""
        share_of_one = 1.0 / max(num_rows, 1.0)
        seconds = [
            rates.rest_s_one * share_of_one + rates.rest_s_many * (1.0 - share_of_one) for rates in self.linear.values()
        ]
        return num_elements * sum(seconds) / len(seconds)

    def predict_overhead(self, num_requests: int) -> float:
        """Measured once, see `STEP_OVERHEAD_S`."""
        return STEP_OVERHEAD_S + REQUEST_OVERHEAD_S * num_requests


def list_machines() -> list[str]:
    """Names of the table."""
    return sorted(_read_table())


def find_machine(name: str) -> TableMachine:
    """The machine called `name` in the table. `InvalidParameterError` with the nearest names for another."""
    table = _read_table()
    entry = table.get(name.lower())
    if entry is None:
        names = [THIS_MACHINE, *sorted(table)]
        raise InvalidParameterError("machine", name, "this or a name of the table; " + suggest(name, names))
    memory = entry["memory_gb"]

    def scale(key: str, factor: float) -> Measured:
        return Measured(entry[key] * factor, entry[key] * factor)

    limits = ThreadLimits(
        num_threads=1,
        read_bytes_per_s=scale("read_gb_per_s", 1e9),
        read_streams=1,
        f32_ops_per_s=scale("bf16_tflops" if entry["kind"] == "gpu" else "f32_tflops", 1e12),
        int8_ops_per_s=scale("int8_tops", 1e12),
        bf16_ops_per_s=scale("bf16_tflops", 1e12),
        stage_handoff_s=Measured(0.0, 0.0),
    )
    return TableMachine(
        name=name.lower(),
        title=entry["title"],
        source=entry["source"],
        kind=entry["kind"],
        limits=limits,
        memory_bytes=None if memory is None else math.floor(memory * 1e9),
        float_ops_per_s=limits.f32_ops_per_s.best,
    )


def _read_table() -> dict[str, dict[str, Any]]:  # Any: JSON, whose one reader is `find_machine`
    table: dict[str, dict[str, Any]] = json.loads(_TABLE.read_text(encoding="utf-8"))  # Any: see above
    return table
