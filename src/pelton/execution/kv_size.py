"""How many KV blocks to provide: what the options ask for, within the memory that is free.

Entry points: `choose_num_blocks`, and `compute_kv_capacity` for what they hold.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from pelton.core.config import EngineConfig
from pelton.core.errors import ConfigError
from pelton.core.memory_size import parse_memory_size
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


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """What a KV cache holds: `num_tokens` token slots in at most `num_bytes` of memory.

    `num_requests` requests of `context_length` tokens each fit at the same time (0 if not even one does).
    """

    num_tokens: int
    num_bytes: int
    context_length: int
    num_requests: int

    def describe(self) -> str:
        """One line for people."""
        return (
            f"KV cache: {self.num_tokens:,} tokens in at most {self.num_bytes / 2**30:.2f} GiB, {self.num_requests:,} "
            f"request{'' if self.num_requests == 1 else 's'} at once of {self.context_length:,} tokens"
        )


def compute_kv_capacity(num_blocks: int, block_size: int, bytes_per_block: int, context_length: int) -> KvCapacity:
    """What `num_blocks` blocks of `block_size` tokens hold."""
    return KvCapacity(
        num_tokens=num_blocks * block_size,
        num_bytes=num_blocks * bytes_per_block,
        context_length=context_length,
        num_requests=num_blocks // -(-context_length // block_size),
    )


def choose_num_blocks(
    config: EngineConfig, model: ModelConfig, block_size: int, bytes_per_block: int, free_bytes: int
) -> int:
    """Blocks for kv_cache_memory or kv_cache_tokens; by default for max_num_seqs full contexts, in half of the memory.

    Raises `ConfigError` if an explicit size exceeds the free memory or not even one block fits.
    """
    if config.kv_cache_tokens is not None:
        num_blocks = -(-config.kv_cache_tokens // block_size)
        _check_free("kv_cache_tokens", config.kv_cache_tokens, num_blocks * bytes_per_block, free_bytes)
        return num_blocks
    if config.kv_cache_memory is not None:
        num_bytes = parse_memory_size("kv_cache_memory", config.kv_cache_memory).compute_bytes(free_bytes)
        _check_free("kv_cache_memory", config.kv_cache_memory, num_bytes, free_bytes)
        if num_bytes < bytes_per_block:
            raise ConfigError(
                f"kv_cache_memory is {config.kv_cache_memory!r}, {num_bytes:,} bytes; a KV block of {block_size} "
                f"tokens needs {bytes_per_block:,}"
            )
        return num_bytes // bytes_per_block
    context = config.max_context or model.max_position_embeddings
    wanted = -(-context // block_size) * config.max_num_seqs
    affordable = int(free_bytes * _FREE_MEMORY_SHARE) // bytes_per_block
    if affordable < 1:
        raise ConfigError(f"a KV block needs {bytes_per_block:,} bytes; free memory is {free_bytes:,}")
    return min(wanted, affordable)


def _check_free(name: str, value: object, num_bytes: int, free_bytes: int) -> None:
    if num_bytes > free_bytes:
        raise ConfigError(f"{name} is {value!r}, which needs {num_bytes:,} bytes; free: {free_bytes:,}")
