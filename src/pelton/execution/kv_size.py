"""How many KV blocks to provide: what the options ask for, within the memory that is free.

Entry point: `choose_num_blocks`.
"""

from __future__ import annotations

import os

from pelton.core.config import EngineConfig
from pelton.core.errors import ConfigError
from pelton.core.model_config import ModelConfig

# Blocks are committed when first written, so this bounds the worst case, not the start.
_FREE_MEMORY_SHARE = 0.5


def read_free_bytes() -> int:
    """Memory that can be had without swapping, in bytes (MemAvailable; free pages where that is not to be read)."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def choose_num_blocks(
    config: EngineConfig, model: ModelConfig, block_size: int, bytes_per_block: int, free_bytes: int
) -> int:
    """Blocks for `config.kv_cache_tokens`, or for max_num_seqs full contexts within half of `free_bytes`.

    Raises `ConfigError` if an explicit size exceeds the free memory or not even one block fits.
    """
    if config.kv_cache_tokens is not None:
        num_blocks = -(-config.kv_cache_tokens // block_size)
        if num_blocks * bytes_per_block > free_bytes:
            raise ConfigError(
                f"kv_cache_tokens is {config.kv_cache_tokens}, which needs {num_blocks * bytes_per_block:,} bytes; "
                f"free: {free_bytes:,}"
            )
        return num_blocks
    context = config.max_context or model.max_position_embeddings
    wanted = -(-context // block_size) * config.max_num_seqs
    affordable = int(free_bytes * _FREE_MEMORY_SHARE) // bytes_per_block
    if affordable < 1:
        raise ConfigError(f"a KV block needs {bytes_per_block:,} bytes; free memory is {free_bytes:,}")
    return min(wanted, affordable)
