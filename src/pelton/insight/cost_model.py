"""The cost model: bytes and operations of every op for given tokens at a given context. Pure arithmetic.

There is one source of these numbers: `native/program` counts them while it runs (`Node::cost`, read through
`core/step_cost.py`), this module says the same beforehand, and `tests/insight/test_cost_model.py` holds the two
together. Everything that plans or explains takes its costs from here. Knows no machine. Start at `list_ops`.

Counted, as there: a linear reads its weights once per step and does two operations per weight and row; attention reads
the stored keys and values of each sequence once and does two products per visible key. What is done row by row
(norms, rotation, activations) works in the caches and counts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pelton.core.step_cost import StepCost
from pelton.insight.attention_cost import Work, count_attention, count_layer_kv_bytes
from pelton.insight.kv_layout import KvFormat
from pelton.insight.model_shape import Matrix, ModelShape
from pelton.insight.weight_formats import ModelFormats, NumberType

# What one operation costs where FP8 is 1 (DeepSeek-V4 technical report, figure 1: its factors come out with these).
_FP8_COSTS: dict[NumberType, float] = {"int8": 1.0, "fp8": 1.0, "f32": 2.0, "fp4": 0.5}


@dataclass(frozen=True, slots=True)
class OpCost:
    """One op of one layer (None: before or after the layers) in one step.

    `kind` is "linear" or "attend". A linear in the weight format `format_name` read its weights for `num_rows` rows
    (of experts, the mean).
    """

    layer: int | None
    kind: str
    name: str
    number_type: NumberType
    num_bytes: float
    num_ops: float
    format_name: str = ""
    num_rows: float = 0.0


def list_ops(
    shape: ModelShape, formats: ModelFormats, kv: KvFormat, sequences: Sequence[Work], num_sampled: int | None = None
) -> Iterator[OpCost]:
    """Every op of a step that costs anything, in order.

    `sequences` says what each request computes; `num_sampled` of them (None: all) get logits, one row each. Past the
    last attention only those rows go on.
    """
    num_tokens = sum(work.num_tokens for work in sequences)
    num_sampled = len(sequences) if num_sampled is None else num_sampled
    last = len(shape.layers) - 1
    for index, layer in enumerate(shape.layers):
        is_after_attention = False
        for matrix in shape.list_layer_matrices(index):
            is_after_attention |= matrix.name.startswith(("attn_output", "ffn_"))
            rows = num_sampled if index == last and is_after_attention else num_tokens
            num_used = layer.mlp.num_experts_per_token if matrix.role == "expert" else matrix.count
            yield _count_linear(matrix, f"blk.{index}.{matrix.name}", formats, rows, num_used, index)
        for name, number_type, num_bytes, num_ops in count_attention(layer.attention, kv, sequences):
            yield OpCost(index, "attend", name, number_type, num_bytes, num_ops)
    if shape.num_streams > 1:
        head = Matrix("streams_head", shape.num_streams, shape.num_streams * shape.hidden_size, "kept")
        yield _count_linear(head, head.name, formats, num_sampled, 1, None)
    yield _count_linear(shape.output, shape.output.name, formats, num_sampled, 1, None)


def _count_linear(
    matrix: Matrix, name: str, formats: ModelFormats, num_rows: int, num_used: int, layer: int | None
) -> OpCost:
    """`num_used` of the matrix's copies serve a row; of experts, those read are what random choices would touch."""
    weight_format = formats.get(name, matrix.role)
    num_read: float = matrix.count
    if matrix.role == "expert":
        num_read = matrix.count * (1.0 - (1.0 - num_used / matrix.count) ** num_rows)
    elif num_rows == 0:
        num_read = 0.0
    return OpCost(
        layer=layer,
        kind="linear",
        name=matrix.name,
        number_type=weight_format.number_type,
        num_bytes=weight_format.count_bytes(matrix.rows, matrix.cols) * num_read,
        num_ops=2.0 * matrix.rows * matrix.cols * num_used * num_rows,
        format_name=weight_format.name,
        num_rows=num_rows * num_used / num_read if num_read else 0.0,
    )


def sum_cost(ops: Sequence[OpCost]) -> StepCost:
    """The step's cost; what is not int8 counts as float32, as the native program has it."""
    int8 = sum(op.num_ops for op in ops if op.number_type == "int8")
    return StepCost(sum(op.num_bytes for op in ops), int8, sum(op.num_ops for op in ops) - int8)


def count_equivalent_fp8_ops(ops: Sequence[OpCost]) -> float:
    """Operations weighed by their number type: bf16 and float32 cost twice fp8, fp4 half."""
    return sum(op.num_ops * _FP8_COSTS[op.number_type] for op in ops)


def count_weight_bytes(shape: ModelShape, formats: ModelFormats) -> int:
    """Bytes of all weights in memory: matrices in their format, vectors in float32."""
    matrices = sum(
        each.count * formats.get(each.name, each.role).count_bytes(each.rows, each.cols)
        for each in shape.list_matrices()
    )
    return matrices + 4 * shape.count_vector_weights()


def count_kv_bytes(shape: ModelShape, kv: KvFormat, context: int) -> float:
    """Bytes of one request's keys and values at `context` tokens, if windows keep no more than they see."""
    return sum(count_layer_kv_bytes(layer.attention, kv, context) for layer in shape.layers)


def count_kv_bytes_per_token(shape: ModelShape, kv: KvFormat) -> float:
    """Bytes by which keys and values grow with each token at a context where no window has filled up yet."""
    return sum(count_layer_kv_bytes(layer.attention, kv, None) for layer in shape.layers)
