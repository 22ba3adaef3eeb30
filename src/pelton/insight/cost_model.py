"""The cost model: bytes and operations of every op for given tokens at a given context. Pure arithmetic.

There is one source of these numbers: `native/program` counts them while it runs (`Node::cost`, read through
`core/step_cost.py`), this module says the same beforehand, and `tests/insight/test_cost_model.py` holds the two
together. Everything that plans or explains takes its costs from here. Knows no machine. Start at `list_ops`.

Counted, as there: a linear reads its weights once per step and does two operations per weight and row; attention reads
the stored keys and values of each sequence once and does two products per visible key. What is done row by row
(norms, rotation, activations) works in the caches and counts nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
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
    num_rows = sum(work.num_tokens for work in sequences)
    num_sampled = len(sequences) if num_sampled is None else num_sampled
    for index in range(len(shape.layers)):
        yield from _list_layer_ops(shape, index, formats, kv, sequences, (num_rows, num_sampled))
    yield from _list_last_ops(shape, formats, num_sampled)


def list_distinct_ops(
    shape: ModelShape, formats: ModelFormats, kv: KvFormat, sequences: Sequence[Work]
) -> list[tuple[OpCost, int]]:
    """What `list_ops` yields, with each of several equal layers' ops once, and how often they occur. Fast."""
    rows = (sum(work.num_tokens for work in sequences), len(sequences))
    last = len(shape.layers) - 1
    counts: dict[Hashable, tuple[int, int]] = {}
    for index, layer in enumerate(shape.layers):
        names = [f"blk.{index}.{matrix.name}" for matrix in shape.list_layer_matrices(index)] if formats.by_name else ()
        key = (layer, index == last, tuple(formats.get(name, "").name for name in names))
        first, count = counts.get(key, (index, 0))
        counts[key] = (first, count + 1)
    pairs = []
    for first, count in counts.values():
        pairs += [(op, count) for op in _list_layer_ops(shape, first, formats, kv, sequences, rows)]
    return pairs + [(op, 1) for op in _list_last_ops(shape, formats, rows[1])]


def _list_layer_ops(
    shape: ModelShape, index: int, formats: ModelFormats, kv: KvFormat, sequences: Sequence[Work], rows: tuple[int, int]
) -> Iterator[OpCost]:
    """Ops of one layer; `rows` are all of the step, and the sampled ones, which alone go on past the last attention."""
    layer = shape.layers[index]
    is_after_attention = False
    for matrix in shape.list_layer_matrices(index):
        is_after_attention |= matrix.name.startswith(("attn_output", "ffn_"))
        num_rows = rows[1] if index == len(shape.layers) - 1 and is_after_attention else rows[0]
        num_used = layer.mlp.num_experts_per_token if matrix.role == "expert" else matrix.count
        yield _count_linear(matrix, f"blk.{index}.{matrix.name}", formats, num_rows, num_used, index)
    for name, number_type, num_bytes, num_ops in count_attention(layer.attention, kv, sequences):
        yield OpCost(index, "attend", name, number_type, num_bytes, num_ops)


def _list_last_ops(shape: ModelShape, formats: ModelFormats, num_sampled: int) -> Iterator[OpCost]:
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


def sum_cost(ops: Iterable[tuple[OpCost, int]]) -> StepCost:
    """Cost of (op, how often); what is not int8 counts as float32, as the native program has it."""
    num_bytes = num_int8_ops = num_f32_ops = 0.0
    for op, count in ops:
        num_bytes += op.num_bytes * count
        if op.number_type == "int8":
            num_int8_ops += op.num_ops * count
        else:
            num_f32_ops += op.num_ops * count
    return StepCost(num_bytes, num_int8_ops, num_f32_ops)


def count_equivalent_fp8_ops(ops: Sequence[OpCost]) -> float:
    """Operations weighed by their number type: bf16 and float32 cost twice fp8, fp4 half."""
    return sum(op.num_ops * _FP8_COSTS[op.number_type] for op in ops)


def count_weight_bytes(shape: ModelShape, formats: ModelFormats) -> int:
    """Bytes of all weights in memory: matrices in their format, vectors in float32."""
    return _count_matrix_bytes(shape, formats) + 4 * shape.count_vector_weights()


def _count_matrix_bytes(shape: ModelShape, formats: ModelFormats) -> int:
    if formats.by_name:
        matrices = [(each, 1) for each in shape.list_matrices()]
    else:
        # Of equal layers one is counted: a plan asks for this several times, and models have up to 126.
        matrices = [(each, 1) for each in shape.list_matrices(num_layers=0)]
        for layer, count in Counter(shape.layers).items():
            index = shape.layers.index(layer)
            matrices += [(each, count) for each in shape.list_layer_matrices(index)]
    return sum(
        count * each.count * formats.get(each.name, each.role).count_bytes(each.rows, each.cols)
        for each, count in matrices
    )


def count_kv_bytes(shape: ModelShape, kv: KvFormat, context: int) -> float:
    """Bytes of one request's keys and values at `context` tokens, if windows keep no more than they see."""
    return sum(count_layer_kv_bytes(layer.attention, kv, context) for layer in shape.layers)


def count_kv_bytes_per_token(shape: ModelShape, kv: KvFormat) -> float:
    """Bytes by which keys and values grow with each token at a context where no window has filled up yet."""
    return sum(count_layer_kv_bytes(layer.attention, kv, None) for layer in shape.layers)
