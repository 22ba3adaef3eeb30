"""Writes a model's forward pass down as a native `Program`.

The model calls the ops of a `Recorder` once, at load time. Four passes then turn the list of calls into nodes:
quantised copies of inputs where a weight wants them, fusion (a residual add into the linear before it, neighbouring
linears over one input), buffers shared by values that do not live at the same time, and emission.
Entry point: `record_program`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pelton._native import PackedWeight, Program, ThreadPool
from pelton.compute.ops import AttendSpec, FloatArray, Weight
from pelton.compute.rope import compute_rope_table
from pelton.core.errors import UnsupportedModelError
from pelton.core.model_config import RopeConfig


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A value of the recording: `width` columns, one row per token or per sampled row."""

    width: int
    rows: str = "tokens"
    is_quantized: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """One op call. `in_place` is the input whose buffer the output takes over, if that input dies here."""

    kind: str
    inputs: tuple[Recorded, ...]
    outputs: tuple[Recorded, ...]
    weights: tuple[Weight, ...] = ()
    vector: FloatArray | None = None
    eps: float = 0.0
    head_dim: int = 0
    attend: AttendSpec | None = None
    in_place: Recorded | None = None


@dataclass(slots=True)
class Recorder:
    """`Ops` over recorded values."""

    calls: list[_Call] = field(default_factory=list)
    ropes: set[RopeConfig] = field(default_factory=set)

    def _call(self, kind: str, inputs: tuple[Recorded, ...], width: int, rows: str, **extra: object) -> Recorded:
        out = Recorded(width, rows)
        self.calls.append(replace(_Call(kind, inputs, (out,)), **extra))  # type: ignore[arg-type]  # fields of _Call
        return out

    def embed(self, weight: Weight) -> Recorded:
        return self._call("embed", (), weight.cols, "tokens", weights=(weight,))

    def rms_norm(self, x: Recorded, weight: FloatArray, eps: float) -> Recorded:
        return self._call("rms_norm", (x,), x.width, x.rows, vector=weight, eps=eps, in_place=x)

    def linear(self, x: Recorded, weight: Weight) -> Recorded:
        return self._call("linear", (x,), weight.rows, x.rows, weights=(weight,))

    def add(self, a: Recorded, b: Recorded) -> Recorded:
        return self._call("add", (a, b), a.width, a.rows, in_place=a)

    def silu_mul(self, gate: Recorded, up: Recorded) -> Recorded:
        return self._call("silu_mul", (gate, up), gate.width, gate.rows, in_place=gate)

    def rope(self, x: Recorded, rope: RopeConfig, head_dim: int) -> Recorded:
        self.ropes.add(rope)
        return self._call("rope", (x,), x.width, x.rows, head_dim=head_dim, in_place=x)

    def attend(self, q: Recorded, k: Recorded, v: Recorded, spec: AttendSpec) -> Recorded:
        self.calls.append(_Call("store_kv", (k, v), (), attend=spec))
        return self._call("attend", (q,), q.width, q.rows, attend=spec)

    def select_rows(self, x: Recorded) -> Recorded:
        return self._call("select_rows", (x,), x.width, "samples")


def _insert_quantize(calls: list[_Call]) -> list[_Call]:
    """Give every linear over an affine weight a quantised input, made once per value."""
    quantized: dict[Recorded, Recorded] = {}
    result: list[_Call] = []
    for call in calls:
        if call.kind == "linear" and not call.weights[0].is_float:
            x = call.inputs[0]
            if x not in quantized:
                quantized[x] = Recorded(x.width, x.rows, is_quantized=True)
                result.append(_Call("quantize", (x,), (quantized[x],)))
            call = replace(call, inputs=(quantized[x],))
        result.append(call)
    return result


def _last_uses(calls: list[_Call], result: Recorded) -> dict[Recorded, int]:
    last = {value: index for index, call in enumerate(calls) for value in (*call.inputs, *call.outputs)}
    last[result] = len(calls)
    return last


def _fuse_residual_adds(calls: list[_Call], result: Recorded) -> list[_Call]:
    """Turn `add(a, linear(x))` into a linear that accumulates into a's buffer, where a is not needed afterwards."""
    last = _last_uses(calls, result)
    fused: list[_Call] = []
    for index, call in enumerate(calls):
        before = fused[-1] if fused else None
        if (
            call.kind == "add"
            and before is not None
            and before.kind == "linear"
            and before.outputs[0] in call.inputs
            and call.inputs[0] is not call.inputs[1]
            and last[before.outputs[0]] == index
        ):
            a = call.inputs[1] if call.inputs[0] is before.outputs[0] else call.inputs[0]
            if last[a] == index:
                fused[-1] = replace(
                    before, kind="linear_add", inputs=(before.inputs[0], a), outputs=call.outputs, in_place=a
                )
                continue
        fused.append(call)
    return fused


def _merge_linears(calls: list[_Call]) -> list[_Call]:
    """Join neighbouring linears over the same input into one node, so that threads share their tiles evenly."""
    merged: list[_Call] = []
    for call in calls:
        before = merged[-1] if merged else None
        if before is not None and call.kind == before.kind == "linear" and call.inputs == before.inputs:
            merged[-1] = replace(before, outputs=before.outputs + call.outputs, weights=before.weights + call.weights)
        else:
            merged.append(call)
    return merged


class _Emitter:
    """Hands out buffers and adds the nodes to the program."""

    def __init__(self, program: Program, calls: list[_Call], result: Recorded) -> None:
        self._program = program
        self._calls = calls
        self._last = _last_uses(calls, result)
        self._buffers: dict[Recorded, int] = {}
        self._free: dict[tuple[int, str, bool], list[int]] = {}

    def emit(self) -> dict[Recorded, int]:
        for index, call in enumerate(self._calls):
            for out in call.outputs:
                self._place(call, out, index)
            self._add_node(call)
            taken = call.in_place if call.in_place is not None and self._dies(call.in_place, index) else None
            for value in {*call.inputs, *call.outputs}:
                if self._last[value] == index and value is not taken:
                    self._free.setdefault(_shape_key(value), []).append(self._buffers[value])
        return self._buffers

    def _dies(self, value: Recorded, index: int) -> bool:
        return self._last[value] == index

    def _place(self, call: _Call, out: Recorded, index: int) -> None:
        if call.in_place is not None and self._dies(call.in_place, index):
            self._buffers[out] = self._buffers[call.in_place]
            return
        free = self._free.get(_shape_key(out))
        self._buffers[out] = free.pop() if free else self._program.add_buffer(out.width, out.rows, out.is_quantized)

    def _add_node(self, call: _Call) -> None:
        ins = [self._buffers[v] for v in call.inputs]
        outs = [self._buffers[v] for v in call.outputs]
        program = self._program
        if call.kind == "embed":
            program.embed(_native_weight(call.weights[0]), outs[0])
        elif call.kind == "rms_norm":
            assert call.vector is not None
            program.rms_norm(ins[0], call.vector, call.eps, outs[0])
        elif call.kind == "quantize":
            program.quantize(ins[0], outs[0])
        elif call.kind in ("linear", "linear_add"):
            parts = [(_native_weight(w), out) for w, out in zip(call.weights, outs, strict=True)]
            program.linear(ins[0], parts, call.kind == "linear_add")
        elif call.kind == "silu_mul":
            program.silu_mul(ins[0], ins[1], outs[0])
        elif call.kind == "add":
            program.add(ins[0], ins[1], outs[0])
        elif call.kind == "select_rows":
            program.select_rows(ins[0], outs[0])
        elif call.kind == "rope":
            if outs[0] != ins[0]:
                raise UnsupportedModelError("rope: its input is used again afterwards; allowed: rotation in place")
            program.rope(ins[0], call.head_dim)
        else:
            assert call.attend is not None
            self._add_attention(call.kind, call.attend, ins, outs)

    def _add_attention(self, kind: str, spec: AttendSpec, ins: list[int], outs: list[int]) -> None:
        if kind == "store_kv":
            self._program.store_kv(ins[0], ins[1], spec.layer)
            return
        softcap, window, sinks = spec.softcap or 0.0, spec.window or 0, spec.sinks or ()
        self._program.attend(
            ins[0], outs[0], spec.layer, spec.num_heads, spec.head_dim, spec.scale, softcap, window, sinks
        )


def _shape_key(value: Recorded) -> tuple[int, str, bool]:
    return value.width, value.rows, value.is_quantized


def _native_weight(weight: Weight) -> PackedWeight:
    if not isinstance(weight, PackedWeight):
        raise TypeError(f"the native executor needs packed weights, not {type(weight).__name__}")
    return weight


def record_program(forward: Callable[[Recorder], Recorded], pool: ThreadPool, isa: str) -> Program:
    """Record `forward` (which returns the logits) into a sealed native program for `isa` on `pool`."""
    recorder = Recorder()
    result = forward(recorder)
    calls = _insert_quantize(recorder.calls)
    calls = _fuse_residual_adds(calls, result)
    calls = _merge_linears(calls)
    if len(recorder.ropes) > 1:
        raise UnsupportedModelError("layers with different rotary settings; allowed: one setting for all layers")
    program = Program(pool, isa)
    for rope in recorder.ropes:
        inverse, magnitude = compute_rope_table(rope)
        program.set_rope(inverse, magnitude, rope.pairing == "adjacent")
    buffers = _Emitter(program, calls, result).emit()
    program.seal(buffers[result])
    return program
