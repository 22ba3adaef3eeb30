"""`ModelRunner` on its own: memory sizes, the environment's ISA, and scores."""

from __future__ import annotations

import pytest

from pelton.core.config import EngineConfig
from pelton.core.errors import ConfigError
from pelton.core.model_config import ModelConfig, RopeConfig
from pelton.execution.kv_size import choose_num_blocks, compute_kv_capacity, read_free_bytes

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


@pytest.mark.parametrize(
    ("memory", "num_blocks"), [("50%", 128), (4096 * 7 + 4095, 7), ("1MiB", 256), ("100%", 256), ("4096", 1)]
)
def test_memory_is_turned_into_whole_blocks(memory, num_blocks):
    assert choose_num_blocks(EngineConfig(kv_cache_memory=memory), MODEL, 16, 4096, free_bytes=1 << 20) == num_blocks


def test_memory_too_small_for_a_block_is_refused_with_both_sizes():
    with pytest.raises(
        ConfigError, match=r"kv_cache_memory is '1KiB', 1,024 bytes; a KV block of 16 tokens needs 4,096"
    ):
        choose_num_blocks(EngineConfig(kv_cache_memory="1KiB"), MODEL, 16, 4096, free_bytes=1 << 20)


def test_capacity_counts_tokens_and_whole_requests():
    capacity = compute_kv_capacity(num_blocks=100, block_size=16, bytes_per_block=1 << 20, context_length=1000)
    assert (capacity.num_tokens, capacity.num_bytes, capacity.num_requests) == (1600, 100 << 20, 1)
    assert capacity.describe() == "KV cache: 1,600 tokens in at most 0.10 GiB, 1 request at once of 1,000 tokens"
    assert compute_kv_capacity(126, 16, 1, 1000).num_requests == 2
    assert compute_kv_capacity(125, 16, 1, 1000).num_requests == 1


@pytest.mark.parametrize(
    ("config", "free"),
    [
        (EngineConfig(kv_cache_tokens=1600), 4096 * 99),
        (EngineConfig(), 4096),
        (EngineConfig(kv_cache_memory="1MiB"), 4096 * 99),
    ],
)
def test_sizes_beyond_the_free_memory_are_refused(config, free):
    with pytest.raises(ConfigError, match="free"):
        choose_num_blocks(config, MODEL, 16, 4096, free_bytes=free)


def test_free_memory_is_readable_here():
    assert read_free_bytes() > 1 << 20
