"""Saving the prefix cache of an engine to a file, and taking it back. Start at `PrefixCacheStore`.

Nothing else may step the engine meanwhile; `LLM` and `AsyncEngine` see to that.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from pelton.core.errors import CacheFileError, ConfigError
from pelton.engine.core import EngineCore
from pelton.engine.prefix_cache_file import BlockKey, CacheFile, CacheIdentity, write_cache_file

_READ_BYTES = 1 << 20


class PrefixCacheStore:
    """Saves and loads for one engine. `model_path` is the file its weights came from; it is hashed when first needed.

    Raises `ConfigError` for an engine without a prefix cache or without a model file.
    """

    def __init__(self, core: EngineCore, model_path: Path | None, kv_cache_dtype: str, vocab_size: int) -> None:
        if not core.scheduler.kv.use_prefix_cache:
            raise ConfigError("this engine has no prefix cache; use_prefix_cache and use_kv_cache must be on")
        if model_path is None:
            raise ConfigError("this engine was made from parts without a model file, so its cache has no identity")
        self._core = core
        self._vocab_size = vocab_size
        self._identity = CacheIdentity(
            model_id=_hash_file(model_path),
            build_id=_compute_build_id(),
            kv_cache_dtype=kv_cache_dtype,
            block_size=core.runner.block_size,
            # Less than kv_bytes_per_block: blocks are padded in memory.
            block_bytes=len(core.runner.get_block(0)),
        )

    def save(self, path: Path) -> int:
        """Write all cached blocks; return how many. Raises `CacheFileError` if the file cannot be written."""
        block_ids: list[int] = []
        keys: list[BlockKey] = []
        known: set[bytes] = set()
        for block_id, entry in self._core.scheduler.kv.export_blocks():
            # A block whose predecessor had to go can be found by nobody.
            if entry.start == 0 or entry.parent in known:
                block_ids.append(block_id)
                keys.append(BlockKey(entry.start, entry.parent, entry.token_ids))
                if entry.block_hash is not None:
                    known.add(entry.block_hash)
        write_cache_file(path, self._identity, keys, lambda index: self._core.runner.get_block(block_ids[index]))
        return len(keys)

    def load(self, path: Path) -> int:
        """Take blocks into the cache while blocks are free that hold nothing; return how many.

        Raises `CacheFileError` for a file that does not fit this engine or is damaged in any place.
        """
        num_loaded = 0
        with CacheFile(path, self._identity, vocab_size=self._vocab_size) as file:
            for key, data in file.read_blocks():
                block_id = self._core.scheduler.kv.import_block(key.start, key.parent, key.token_ids)
                if block_id is not None:
                    self._core.runner.set_block(block_id, data)
                    num_loaded += 1
        return num_loaded


def _hash_file(path: Path) -> str:
    digest = blake2b(digest_size=32)
    try:
        for part in _read_parts(path):
            digest.update(part)
    except OSError as error:
        raise CacheFileError(f"{path} cannot be read to tell which model it is: {error}") from error
    return digest.hexdigest()


def _read_parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(_READ_BYTES):
            yield part


def _compute_build_id() -> str:
    """Hash of the native module: kernels of another build may round differently."""
    spec = importlib.util.find_spec("pelton._native")
    if spec is None or spec.origin is None:
        raise ConfigError("the native module cannot be found, so the cache has no identity")
    return _hash_file(Path(spec.origin))
