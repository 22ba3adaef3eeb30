"""`ModelRunner` on its own: memory sizes, the environment's ISA, and scores."""

from __future__ import annotations

import pytest

from pelton.core.config import EngineConfig
from pelton.core.errors import ConfigError
from pelton.core.model_config import ModelConfig, RopeConfig
from pelton.execution.kv_size import choose_num_blocks, read_free_bytes

MODEL = ModelConfig(
    model_type="llama", name="tiny", vocab_size=100, hidden_size=64, intermediate_size=64, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=16, max_position_embeddings=1000, norm_eps=1e-5, rope=RopeConfig(num_dims=16),
    tie_word_embeddings=True,
)  # fmt: skip


def test_blocks_hold_every_request_at_full_context_if_memory_allows():
    config = EngineConfig(max_num_seqs=3)
    assert choose_num_blocks(config, MODEL, 16, 4096, free_bytes=1 << 40) == 3 * 63


def test_blocks_stay_within_half_of_the_free_memory():
    config = EngineConfig(max_num_seqs=64)
    assert choose_num_blocks(config, MODEL, 16, 4096, free_bytes=4096 * 100) == 50


def test_an_explicit_size_is_rounded_up_to_blocks():
    assert choose_num_blocks(EngineConfig(kv_cache_tokens=17), MODEL, 16, 4096, free_bytes=1 << 30) == 2


@pytest.mark.parametrize(("config", "free"), [(EngineConfig(kv_cache_tokens=1600), 4096 * 99), (EngineConfig(), 4096)])
def test_sizes_beyond_the_free_memory_are_refused(config, free):
    with pytest.raises(ConfigError, match="free"):
        choose_num_blocks(config, MODEL, 16, 4096, free_bytes=free)


def test_free_memory_is_readable_here():
    assert read_free_bytes() > 1 << 20
