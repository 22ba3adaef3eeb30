"""GGUF metadata of the llama family becomes a configuration, or an error that names the key."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pelton.core.errors import ModelFileError, UnsupportedModelError
from pelton.core.model_config import ModelConfig
from pelton.models.llama import read_config
from pelton.models.registry import get_family

BASE: dict[str, object] = {
    "general.name": "tiny",
    "llama.block_count": 2,
    "llama.context_length": 512,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


class FakeSource:
    """Knows which tensors there are, and the one vector that configuration needs."""

    def __init__(self, factors: list[float] | None = None) -> None:
        self._factors = factors

    def has(self, name: str) -> bool:
        return name == "rope_freqs.weight" and self._factors is not None

    def get_vector(self, name: str, size: int) -> np.ndarray:
        assert len(self._factors) == size
        return np.array(self._factors, np.float32)

    def get_matrix(self, name: str, rows: int, cols: int) -> None:
        raise AssertionError("configuration reads no matrix")


def read(extra: dict[str, object] | None = None, factors: list[float] | None = None) -> ModelConfig:
    return read_config(BASE | (extra or {}), FakeSource(factors), 100)


def test_head_size_defaults_to_an_even_share_and_can_be_given():
    assert read().head_dim == 16
    given = read({"llama.attention.key_length": 24, "llama.attention.value_length": 24})
    assert (given.head_dim, given.rope.num_dims) == (24, 24)


def test_frequency_factors_become_the_scaling():
    rope = read(factors=[1.0, 2.0, 0.5, 4.0, 1.0, 1.0, 1.0, 1.0]).rope
    assert (rope.scaling, rope.frequency_factors[:4]) == ("factors", (1.0, 2.0, 0.5, 4.0))


def test_yarn_keys_multiply_its_own_magnitude():
    yarn = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 128,
    }
    assert read(yarn).rope.yarn_attention_factor is None
    rope = read(yarn | {"llama.rope.scaling.attn_factor": 0.5}).rope
    assert rope.yarn_attention_factor == pytest.approx(0.5 * (0.1 * math.log(4) + 1))
    with pytest.raises(UnsupportedModelError, match=r"yarn_ext_factor is 0\.5"):
        read(yarn | {"llama.rope.scaling.yarn_ext_factor": 0.5})


def test_old_linear_key_and_window_are_honoured():
    config = read({"llama.rope.scale_linear": 2.0, "llama.attention.sliding_window": 100})
    assert (config.rope.scaling, config.rope.factor, config.sliding_window) == ("linear", 2.0, 100)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"llama.block_count": 0}, "llama.block_count is 0"),
        ({"llama.block_count": "2"}, "llama.block_count is '2'"),
        ({"llama.embedding_length": 2**40}, "embedding_length"),
        ({"llama.attention.layer_norm_rms_epsilon": math.nan}, "epsilon is nan"),
        ({"llama.rope.dimension_count": 7}, "dimension_count is 7"),
        ({"llama.rope.dimension_count": 18}, "dimension_count is 18"),
        ({"llama.rope.freq_base": -1.0}, "freq_base is -1.0"),
    ],
)
def test_an_impossible_value_is_an_error_that_names_its_key(extra, message):
    with pytest.raises(ModelFileError, match=message):
        read(extra)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"llama.attention.head_count": 5, "llama.attention.head_count_kv": 2}, "multiple of num_kv_heads"),
        ({"llama.expert_count": 8}, "experts"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
        ({"llama.attention.value_length": 8}, "value_length is 8"),
    ],
)
def test_what_is_not_implemented_says_what_is(extra, message):
    with pytest.raises(UnsupportedModelError, match=message):
        read(extra)


def test_a_missing_key_is_named():
    with pytest.raises(ModelFileError, match=r"llama\.context_length is missing"):
        read_config({k: v for k, v in BASE.items() if k != "llama.context_length"}, FakeSource(), 100)


def test_an_unknown_architecture_lists_the_known():
    with pytest.raises(UnsupportedModelError, match=r"'gemma3'; supported: llama"):
        get_family("gemma3")
