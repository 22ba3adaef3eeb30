"""The cost model against the native program, which counts the same while it runs, and against values by hand."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "models"))

from gguf import GGMLQuantizationType as GgmlType
from random_gguf import RandomLlama, write_gguf

from pelton import LLM, SamplingParams
from pelton._native import KvCache, ThreadPool, pack_weight
from pelton.core.config import KV_CACHE_DTYPES
from pelton.core.errors import InvalidParameterError
from pelton.core.request import Request
from pelton.core.step_cost import StepCost
from pelton.core.step_plan import ScheduledRequest, StepPlan
from pelton.insight.attention_cost import Work, sum_visible_entries, sum_visible_keys
from pelton.insight.cost_model import count_weight_bytes, list_distinct_ops, list_ops, sum_cost
from pelton.insight.kv_layout import KvFormat, count_cache_block_bytes
from pelton.insight.model_source import ModelSource, open_model
from pelton.insight.weight_formats import WEIGHT_FORMATS, get_weight_format
from pelton.quant.block_types import BLOCK_TYPES

BATCHES = [[(0, 1)], [(0, 40)], [(33, 7), (5, 1), (64, 20)], [(100, 1)] * 5]
GREEDY = SamplingParams(temperature=0.0)

MODELS = [
    RandomLlama("plan-f32"),
    RandomLlama("plan-q8", weight_type=GgmlType.Q8_0, hidden_size=96, head_dim=24, intermediate_size=160, is_tied=True),
    RandomLlama(
        "plan-mixed",
        hidden_size=256,
        num_layers=3,
        num_heads=8,
        num_kv_heads=8,
        head_dim=32,
        intermediate_size=512,
        vocab_size=117,
        weight_type=GgmlType.Q4_K,
        embedding_type=GgmlType.Q6_K,
        tensor_types={"blk.1.ffn_down.weight": GgmlType.Q6_K, "blk.2.attn_v.weight": GgmlType.F16},
    ),
]


def make_request(index: int, length: int) -> Request:
    return Request(
        request_id=str(index),
        prompt_token_ids=(1,) * length,
        params=GREEDY,
        max_tokens=1,
        seed=0,
        eos_token_ids=frozenset(),
        arrival_s=0.0,
        block_table=list(range(10 * index, 10 * index + 10)),
    )


def run_native(llm: LLM, batch: list[tuple[int, int]]) -> list[tuple[str, float, float, float]]:
    """Nodes of one step; the contexts before are whatever the cache holds, which changes no cost."""
    scheduled = []
    for index, (depth, num_tokens) in enumerate(batch):
        request = make_request(index, depth + num_tokens)
        scheduled.append(ScheduledRequest(request, [1] * num_tokens, depth, True, request.block_table))
    llm.runner.run(StepPlan(tuple(scheduled)))
    return llm.runner.get_node_times()


def check_equal(llm: LLM, source: ModelSource, kv: str, batch: list[tuple[int, int]]) -> None:
    nodes = run_native(llm, batch)
    ops = list(list_ops(source.shape, source.formats, KvFormat(kv), [Work(*each) for each in batch]))
    native, own = StepCost.from_node_times(nodes), sum_cost((op, 1) for op in ops)
    distinct = list_distinct_ops(source.shape, source.formats, KvFormat(kv), [Work(*each) for each in batch])
    assert dataclasses.astuple(sum_cost(distinct)) == pytest.approx(dataclasses.astuple(own), rel=1e-12)
    assert own.num_bytes == pytest.approx(native.num_bytes, rel=1e-12)
    assert own.num_int8_ops == pytest.approx(native.num_int8_ops, rel=1e-12)
    assert own.num_f32_ops == pytest.approx(native.num_f32_ops, rel=1e-12)
    # One by one for attention: what native code merges into one node are linears only.
    attends = [(num_bytes, num_ops) for kind, _, num_bytes, num_ops in nodes if kind == "attend"]
    assert [(op.num_bytes, op.num_ops) for op in ops if op.kind == "attend"] == attends


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: model.name)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(request.param, tmp_path_factory.mktemp("plan") / f"{request.param.name}.gguf")


@pytest.mark.parametrize("kv", ["f16", "int4"])
def test_costs_equal_those_that_the_native_program_counts(tiny: Path, kv: str, tmp_path: Path) -> None:
    source = open_model(str(tiny), tmp_path)
    with LLM(tiny, threads=1, kv_cache_tokens=1024, kv_cache_dtype=kv) as llm:
        for batch in BATCHES:
            check_equal(llm, source, kv, batch)


def test_weight_bytes_equal_those_that_loading_packs(tiny: Path, tmp_path: Path) -> None:
    from pelton.loading.model import load_model

    source = open_model(str(tiny), tmp_path)
    assert count_weight_bytes(source.shape, source.formats) == load_model(tiny).num_weight_bytes


@pytest.mark.model
def test_costs_equal_the_native_ones_for_the_default_model(tmp_path: Path) -> None:
    path = Path(os.environ["PELTON_TEST_MODEL"])
    source = open_model(str(path), tmp_path)
    with LLM(path, threads=2, kv_cache_tokens=1024) as llm:
        check_equal(llm, source, "f16", [(64, 5), (10, 1)])


@pytest.mark.parametrize("block_type", BLOCK_TYPES.values(), ids=lambda each: each.name)
def test_format_counts_the_bytes_that_are_packed(block_type) -> None:
    pool = ThreadPool(1)
    for rows, cols in ((1, 256), (16, 512), (33, 768)):
        data = np.zeros(block_type.count_bytes(rows * cols), np.uint8)
        packed = pack_weight(block_type.ggml_type_id, rows, cols, data, pool)
        assert get_weight_format(block_type.name).count_bytes(rows, cols) == packed.num_bytes


@pytest.mark.parametrize("name", KV_CACHE_DTYPES)
def test_kv_layout_is_that_of_the_native_cache(name: str) -> None:
    for num_layers, num_kv_heads, head_dim in ((1, 1, 8), (3, 2, 24), (30, 3, 64), (5, 8, 128), (2, 7, 100)):
        cache = KvCache(num_layers, num_kv_heads, head_dim, 1, name)
        assert count_cache_block_bytes(KvFormat(name), num_kv_heads, head_dim, num_layers) == cache.bytes_per_block


def list_cases() -> Iterator[tuple[int, int, int]]:
    for depth in (0, 1, 3, 4, 7, 40):
        for num_tokens in (1, 2, 5, 30):
            for limit in (1, 4, 6, 100):
                yield depth, num_tokens, limit


def test_visible_keys_are_those_counted_one_by_one() -> None:
    for depth, num_tokens, window in list_cases():
        seen = [t + 1 for t in range(depth, depth + num_tokens)]
        assert sum_visible_keys(depth + 1, num_tokens, None) == sum(seen)
        assert sum_visible_keys(depth + 1, num_tokens, window) == sum(min(each, window) for each in seen)


def test_visible_entries_are_those_counted_one_by_one() -> None:
    for depth, num_tokens, most in list_cases():
        for ratio in (1, 4, 16):
            seen = [(t + 1) // ratio for t in range(depth, depth + num_tokens)]
            assert sum_visible_entries(Work(depth, num_tokens), ratio, None) == sum(seen)
            assert sum_visible_entries(Work(depth, num_tokens), ratio, most) == sum(min(each, most) for each in seen)


def test_format_whose_blocks_do_not_divide_a_row_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match=r"weights is 'q4_k'; allowed: .*rows of 576"):
        get_weight_format("Q4_K").count_bytes(16, 576)


def test_unknown_format_lists_all() -> None:
    with pytest.raises(InvalidParameterError, match=r"weights is 'q9'; allowed: one of f32.*int4") as error:
        get_weight_format("q9")
    assert all(name in str(error.value) for name in WEIGHT_FORMATS)
