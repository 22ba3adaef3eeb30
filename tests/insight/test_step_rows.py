"""Costs of recorded steps, against the cost model's own list of ops and limits with round numbers."""

from __future__ import annotations

import pytest
from traces import make_step, make_trace

from pelton.insight.attention_cost import Work
from pelton.insight.cost_model import list_ops, sum_cost
from pelton.insight.explain_costs import StepCounter
from pelton.insight.kv_layout import KvFormat
from pelton.insight.machine_limits import Measured, ThreadLimits
from pelton.insight.prediction import Planned
from pelton.insight.presets import find_preset
from pelton.insight.step_rows import make_step_rows
from pelton.insight.weight_formats import ModelFormats

LIMITS = ThreadLimits(2, Measured(1e10, 9e9), 4, Measured(1e11, 9e10), Measured(1e12, 9e11), None, Measured(1e-6, 2e-6))


@pytest.fixture(scope="module")
def planned() -> Planned:
    preset = find_preset("smollm2-135m")
    assert preset is not None
    return Planned(preset.shape, ModelFormats.make_uniform("q8_0"), KvFormat("f16"))


def test_a_step_costs_what_the_cost_model_says(planned: Planned) -> None:
    # The prompt of sequence 2 (30 tokens) goes on, that of 3 is not known but has more than one token.
    step = make_step(7, 0, 103, [(1, 50, 1), (2, 10, 16), (3, 0, 4)], num_decodes=1, decode_alone_ms=20)
    (row,) = make_step_rows([step], {2: make_trace()}, StepCounter(planned), LIMITS)
    works = [Work(50, 1), Work(10, 16), Work(0, 4)]
    cost = sum_cost((op, 1) for op in list_ops(planned.shape, planned.formats, planned.kv, works, 1))
    assert (row["bytes"], row["int8_ops"], row["f32_ops"]) == (
        round(cost.num_bytes),
        round(cost.num_int8_ops),
        round(cost.num_f32_ops),
    )
    assert row["gb_per_s"] == pytest.approx(cost.num_bytes / 0.1 / 1e9, abs=1e-3)
    assert row["gop_per_s"] == pytest.approx((cost.num_int8_ops + cost.num_f32_ops) / 0.1 / 1e9, abs=1e-3)
    memory_s, arithmetic_s = cost.num_bytes / 1e10, cost.num_int8_ops / 1e12 + cost.num_f32_ops / 1e11
    assert row["bound"] == ("memory" if memory_s >= arithmetic_s else "arithmetic")
    assert row["pct_of_limit"] == pytest.approx(100 * max(memory_s, arithmetic_s) / 0.1, abs=0.01)
    assert row["shares"] == [[1, 50, 1], [2, 10, 16], [3, 0, 4]]
    assert (row["number"], row["model"], row["alone"], row["plan"]) == (7, 100.0, 20.0, 1.0)
    assert row["end"] - row["start"] == 103.0


def test_a_chunk_that_ends_the_prompt_has_logits(planned: Planned) -> None:
    step = make_step(1, 0, 10, [(2, 26, 4)])
    (row,) = make_step_rows([step], {2: make_trace()}, StepCounter(planned), None)
    cost = sum_cost((op, 1) for op in list_ops(planned.shape, planned.formats, planned.kv, [Work(26, 4)], 1))
    assert row["int8_ops"] == round(cost.num_int8_ops)
    assert (row["bound"], row["pct_of_limit"]) == (None, None)


def test_without_a_model_there_are_no_costs() -> None:
    (row,) = make_step_rows([make_step(1, 0, 10, [(2, 0, 4)])], {}, None, LIMITS)
    names = ("bound", "pct_of_limit", "bytes", "int8_ops", "f32_ops", "gb_per_s", "gop_per_s")
    assert [row[name] for name in names] == [None] * 7
