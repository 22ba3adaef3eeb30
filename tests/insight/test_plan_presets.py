"""What is published about models, computed from the presets."""

from __future__ import annotations

import dataclasses

import pytest

from pelton.insight.attention_cost import Work, count_growing_bytes
from pelton.insight.cost_model import (
    count_equivalent_fp8_ops,
    count_kv_bytes,
    count_kv_bytes_per_token,
    count_weight_bytes,
    list_ops,
)
from pelton.insight.kv_layout import KvFormat
from pelton.insight.model_shape import GroupedAttention, ModelShape
from pelton.insight.presets import Preset, find_preset, list_presets
from pelton.insight.weight_formats import ModelFormats

MILLION = 10**6


def get_preset(name: str) -> Preset:
    preset = find_preset(name)
    assert preset is not None
    return preset


def get_shape(name: str) -> ModelShape:
    return get_preset(name).shape


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        # Model cards and reports, rounded as they print it.
        ("llama-2-7b", 6.74),
        ("llama-2-13b", 13.02),
        ("llama-2-70b", 68.98),
        ("llama-3-8b", 8.03),
        ("llama-3.1-405b", 405.85),
        ("llama-3.2-1b", 1.24),
        ("llama-3.2-3b", 3.21),
        ("qwen3-0.6b", 0.60),
        ("qwen3-8b", 8.19),
        ("qwen3-30b-a3b", 30.53),
        ("qwen3-235b-a22b", 235.09),
        ("mistral-7b", 7.24),
        ("mixtral-8x7b", 46.70),
        ("gemma-3-1b", 1.00),
        ("gemma-3-27b", 27.01),
        ("smollm2-135m", 0.135),
        ("smollm2-360m", 0.362),
        ("smollm2-1.7b", 1.71),
        ("deepseek-v3.2", 671.9),
    ],
)
def test_parameters_are_those_published(name: str, billions: float) -> None:
    assert get_shape(name).count_parameters() / 1e9 == pytest.approx(billions, abs=0.0051 if billions < 600 else 0.1)


def test_active_parameters_of_experts_are_those_published() -> None:
    assert get_shape("mixtral-8x7b").count_active_parameters() / 1e9 == pytest.approx(12.9, abs=0.2)
    assert get_shape("deepseek-v3.2").count_active_parameters() / 1e9 == pytest.approx(37, abs=0.5)
    assert get_shape("deepseek-v4-pro").count_active_parameters() / 1e9 == pytest.approx(49, abs=0.5)
    assert get_shape("deepseek-v4-flash").count_active_parameters() / 1e9 == pytest.approx(13, abs=0.5)


@pytest.mark.parametrize(("weights", "gigabytes"), [("f32", 28.0), ("f16", 14.0), ("int8", 7.0), ("int4", 3.5)])
def test_7_b_weights_take_28_14_7_and_3_5_gb(weights: str, gigabytes: float) -> None:
    shape = get_shape("llama-2-7b")
    assert round(shape.count_parameters() / 1e9) == 7
    num_bytes = count_weight_bytes(shape, ModelFormats.make_uniform(weights))
    # "7 B" is 6.74 B. Norms stay in float32, which is nothing beside the matrices.
    assert num_bytes / shape.count_parameters() * 7 == pytest.approx(gigabytes, rel=5e-4)
    assert num_bytes / 1e9 == pytest.approx(gigabytes, rel=0.04)


def test_llama_2_13b_stores_819200_bytes_a_token() -> None:
    shape = get_shape("llama-2-13b")
    assert count_kv_bytes_per_token(shape, KvFormat("f16")) == 819_200
    assert count_kv_bytes(shape, KvFormat("f16"), 4096) / 1e9 == pytest.approx(3.36, abs=0.005)


def test_llama_2_70b_stores_an_eighth_of_what_full_heads_would() -> None:
    shape = get_shape("llama-2-70b")
    attention = shape.layers[0].attention
    assert isinstance(attention, GroupedAttention)
    full = dataclasses.replace(attention, num_kv_heads=attention.num_heads)
    layers = tuple(dataclasses.replace(layer, attention=full) for layer in shape.layers)
    grown = dataclasses.replace(shape, layers=layers)
    kv = KvFormat("f16")
    assert count_kv_bytes_per_token(grown, kv) == 8 * count_kv_bytes_per_token(shape, kv)


def test_mistrals_window_stops_its_kv_growing() -> None:
    shape, kv = get_shape("mistral-7b"), KvFormat("f16")
    at_window = count_kv_bytes(shape, kv, 4096)
    assert count_kv_bytes(shape, kv, 2048) == at_window / 2
    assert count_kv_bytes(shape, kv, 4097) == at_window == count_kv_bytes(shape, kv, 32768)
    assert count_kv_bytes(get_shape("mistral-7b-v0.3"), kv, 32768) == 8 * at_window


def test_gemma_3_keeps_one_layer_in_six_in_full() -> None:
    shape = get_shape("gemma-3-27b")
    windows = [layer.attention.window for layer in shape.layers]
    assert windows[:6] == [1024] * 5 + [None]
    assert windows.count(None) == 10


def count_kv_growth(name: str) -> float:
    preset = get_preset(name)
    kv = KvFormat(preset.kv_cache_dtype)
    return sum(count_growing_bytes(layer.attention, kv) for layer in preset.shape.layers)


def count_fp8_ops(name: str, context: int) -> float:
    preset = get_preset(name)
    formats = ModelFormats.from_names(preset.weights)
    return count_equivalent_fp8_ops(
        list(list_ops(preset.shape, formats, KvFormat(preset.kv_cache_dtype), [Work(context - 1, 1)]))
    )


def test_deepseek_v32_stores_788_bytes_a_token_and_layer() -> None:
    assert count_kv_growth("deepseek-v3.2") == 61 * (656 + 132)


@pytest.mark.parametrize(
    ("name", "kv_pct", "ops_pct"), [("deepseek-v4-pro", 10.47, 27.07), ("deepseek-v4-flash", 7.31, 10.17)]
)
def test_deepseek_v4_needs_the_published_share_at_a_million_tokens(name: str, kv_pct: float, ops_pct: float) -> None:
    kv_share = count_kv_growth(name) / count_kv_growth("deepseek-v3.2")
    ops_share = count_fp8_ops(name, MILLION) / count_fp8_ops("deepseek-v3.2", MILLION)
    assert 100 * kv_share == pytest.approx(kv_pct, abs=0.005)
    assert 100 * ops_share == pytest.approx(ops_pct, abs=0.005)


def test_deepseek_v4_window_adds_a_fixed_amount() -> None:
    # arXiv:2606.19348: 584 bytes an entry, 128 tokens, 61 layers; the growing part counts whole windows only.
    preset = get_preset("deepseek-v4-pro")
    total = count_kv_bytes(preset.shape, KvFormat("mixed"), 2**20)
    assert total - 2**20 * count_kv_growth("deepseek-v4-pro") == 584 * 128 * 61


def test_every_preset_has_a_source_and_formats_that_fit() -> None:
    for name in list_presets():
        preset = get_preset(name)
        assert preset.source.startswith("config.json of ")
        assert count_weight_bytes(preset.shape, ModelFormats.from_names(preset.weights)) > 0
        assert count_kv_bytes(preset.shape, KvFormat(preset.kv_cache_dtype), 1024) > 0
