"""The op set: all that a model may ask of a machine.

A model's forward pass is a function over an `Ops`. `reference.ReferenceOps` computes each op at once in NumPy;
`recorder.Recorder` writes it down for the native executor. An op never names an ISA, a thread or a weight format.
A value stands for a float32 array with one row per token of the step ("tokens") or per sampled row ("samples").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pelton.core.model_config import RopeConfig

FloatArray = npt.NDArray[np.float32]
Value = TypeVar("Value")


class Weight(Protocol):
    """A matrix [rows, cols] in some packed format; rows are outputs, cols inputs."""

    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def is_float(self) -> bool: ...
    def dequantize(self) -> FloatArray:
        """Return all values as float32 [rows, cols]."""
        ...


@dataclass(frozen=True, slots=True)
class AttendSpec:
    """Attention of one layer. Key j is seen from position i iff 0 <= i - j (and < `window`, if set).

    `scale` multiplies q.k; `softcap` c, if set, turns a score s into c * tanh(s / c). `sinks`, if set, holds a learned
    logit per head that joins the softmax's denominator without a value of its own; it is neither scaled nor capped.
    """

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    softcap: float | None = None
    window: int | None = None
    sinks: tuple[float, ...] | None = None


class Ops(Protocol[Value]):
    """What a forward pass is written in. Shapes: N is T or R rows."""

    def embed(self, weight: Weight) -> Value:
        """Rows of `weight` [vocab, hidden] for the step's token ids: [T, hidden]."""
        ...

    def rms_norm(self, x: Value, weight: FloatArray, eps: float) -> Value:
        """x / sqrt(mean(x^2) + eps) * weight, per row (Zhang and Sennrich 2019): [N, hidden]."""
        ...

    def linear(self, x: Value, weight: Weight) -> Value:
        """x @ weight.T: [N, cols] -> [N, rows]."""
        ...

    def add(self, a: Value, b: Value) -> Value:
        """a + b: [N, width]."""
        ...

    def silu_mul(self, gate: Value, up: Value) -> Value:
        """silu(gate) * up, silu(g) = g / (1 + e^-g) (Shazeer 2020): [N, width]."""
        ...

    def rope(self, x: Value, rope: RopeConfig, head_dim: int) -> Value:
        """Rotate every head by its token's position (Su et al. 2021): [T, heads * head_dim]."""
        ...

    def attend(self, q: Value, k: Value, v: Value, spec: AttendSpec) -> Value:
        """Store k and v in the KV cache, then causal softmax attention over it: [T, num_heads * head_dim]."""
        ...

    def select_rows(self, x: Value) -> Value:
        """Keep the sampled rows: [T, width] -> [R, width]."""
        ...
