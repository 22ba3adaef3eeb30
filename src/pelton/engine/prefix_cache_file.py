"""The file of a saved prefix cache: K/V of blocks with the tokens they belong to, for one model, build and KV dtype.

    magic "PELTONKV" | header length, u32 | header, JSON | checksum of all before | records
    record: start, u64 | parent hash, 32 bytes | num_tokens, u32 | tokens, block_size x i32 | K/V | checksum

Numbers are little-endian; checksums are 16 bytes of BLAKE2b. All records have one length, and each comes after the
block it follows. A file is checked as a whole before anything of it is used. Knows bytes, not engines. Start at
`write_cache_file` and `CacheFile`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO

from pelton.core.errors import CacheFileError
from pelton.scheduling.prefix_index import compute_block_hash

MAGIC = b"PELTONKV"
VERSION = 1
_MAX_HEADER_BYTES = 1 << 16
_LENGTH = struct.Struct("<I")
_CHECKSUM_BYTES = 16


@dataclass(frozen=True, slots=True)
class CacheIdentity:
    """What must be equal for K/V to be the same bits: model file, build of the kernels, KV dtype, shape of a block.

    All instruction sets of a build give the same bits, so the one in use is not part of it.
    """

    model_id: str
    build_id: str
    kv_cache_dtype: str
    block_size: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class BlockKey:
    """Which tokens a block holds: `token_ids` from position `start` on, after the block with hash `parent`."""

    start: int
    parent: bytes
    token_ids: tuple[int, ...]


def write_cache_file(
    path: Path, identity: CacheIdentity, keys: Sequence[BlockKey], get_data: Callable[[int], bytes]
) -> None:
    """Write blocks to `path`, in one go: the file is there whole or not at all. `get_data(i)` is the K/V of `keys[i]`.

    The file is readable by its owner only. Raises `CacheFileError` if it cannot be written.
    """
    header = json.dumps({"version": VERSION, "num_blocks": len(keys), **dataclasses.asdict(identity)}).encode()
    start = MAGIC + _LENGTH.pack(len(header)) + header
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(start + _checksum(start))
            for index, key in enumerate(keys):
                record = _pack(key, identity, get_data(index))
                file.write(record + _checksum(record))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise CacheFileError(f"{path} cannot be written: {error}") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


class CacheFile:
    """A saved prefix cache, open for reading; use it in a `with` block.

    Raises `CacheFileError` on construction if the file is of another kind, version, model, build or KV dtype, or if
    anything in it is damaged. What is read has been checked.
    """

    def __init__(self, path: Path, identity: CacheIdentity, *, vocab_size: int) -> None:
        self._path = path
        self._identity = identity
        self._vocab_size = vocab_size
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise CacheFileError(f"{path} cannot be read: {error}") from error
        try:
            self.num_blocks = self._read_header()
            self._first_record = self._file.tell()
            self._check_size()
            self._check_chain()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> CacheFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read_blocks(self) -> Iterator[tuple[BlockKey, bytes]]:
        """All blocks with their K/V, each after the one it follows."""
        self._file.seek(self._first_record)
        for index in range(self.num_blocks):
            yield self._unpack(index, self._read(self._record_bytes, f"block {index}"))

    @property
    def _record_bytes(self) -> int:
        return _get_key_struct(self._identity).size + self._identity.block_bytes

    def _read_header(self) -> int:
        start = self._file.read(len(MAGIC) + _LENGTH.size)
        if len(start) < len(MAGIC) + _LENGTH.size or not start.startswith(MAGIC):
            raise self._fail("is not a saved prefix cache")
        (num_bytes,) = _LENGTH.unpack_from(start, len(MAGIC))
        if num_bytes > _MAX_HEADER_BYTES:
            raise self._fail(f"has a header of {num_bytes} bytes; allowed: at most {_MAX_HEADER_BYTES}")
        header = self._file.read(num_bytes)
        if self._file.read(_CHECKSUM_BYTES) != _checksum(start + header):
            raise self._fail("is damaged: the header does not fit its checksum")
        try:
            values = json.loads(header)
        except (ValueError, RecursionError) as error:
            raise self._fail("has a header that is no JSON") from error
        if not isinstance(values, dict):
            raise self._fail("has a header that is no object")
        expected = {"version": VERSION, **dataclasses.asdict(self._identity)}
        for name, value in expected.items():
            if values.get(name) != value:
                raise self._fail(f"has {name} {values.get(name)!r}; this engine needs {value!r}")
        num_blocks = values.get("num_blocks")
        if isinstance(num_blocks, bool) or not isinstance(num_blocks, int) or num_blocks < 0:
            raise self._fail(f"has num_blocks {num_blocks!r}; allowed: integers from 0")
        return num_blocks

    def _check_size(self) -> None:
        expected = self._first_record + self.num_blocks * (self._record_bytes + _CHECKSUM_BYTES)
        found = os.fstat(self._file.fileno()).st_size
        if found != expected:
            raise self._fail(f"has {found} bytes; {self.num_blocks} blocks need {expected}")

    def _check_chain(self) -> None:
        """Read everything once: every checksum fits, and every block follows one that came before."""
        hashes: dict[bytes, int] = {}
        for index, (key, _) in enumerate(self.read_blocks()):
            if key.start > 0 and hashes.get(key.parent) != key.start:
                raise self._fail(f"is damaged: block {index} follows none of the blocks before it")
            if len(key.token_ids) == self._identity.block_size:
                hashes[compute_block_hash(key.parent, key.token_ids)] = key.start + self._identity.block_size

    def _read(self, num_bytes: int, what: str) -> bytes:
        data = self._file.read(num_bytes + _CHECKSUM_BYTES)
        record = data[:num_bytes]
        if data[num_bytes:] != _checksum(record):
            raise self._fail(f"is damaged: {what} does not fit its checksum")
        return record

    def _unpack(self, index: int, record: bytes) -> tuple[BlockKey, bytes]:
        layout = _get_key_struct(self._identity)
        start, parent, num_tokens, *slots = layout.unpack_from(record)
        if not 1 <= num_tokens <= self._identity.block_size or start % self._identity.block_size:
            raise self._fail(f"is damaged: block {index} has {num_tokens} tokens from position {start}")
        token_ids = tuple(slots[:num_tokens])
        if not all(0 <= token_id < self._vocab_size for token_id in token_ids):
            raise self._fail(f"is damaged: block {index} has token ids outside the vocabulary")
        return BlockKey(start, parent, token_ids), record[layout.size :]

    def _fail(self, reason: str) -> CacheFileError:
        return CacheFileError(f"{self._path} {reason}; nothing of it is used")


def _get_key_struct(identity: CacheIdentity) -> struct.Struct:
    return struct.Struct(f"<Q32sI{identity.block_size}i")


def _pack(key: BlockKey, identity: CacheIdentity, data: bytes) -> bytes:
    slots = (*key.token_ids, *(0,) * (identity.block_size - len(key.token_ids)))
    assert len(data) == identity.block_bytes, f"a block has {len(data)} bytes, not {identity.block_bytes}"
    return _get_key_struct(identity).pack(key.start, key.parent, len(key.token_ids), *slots) + data


def _checksum(data: bytes) -> bytes:
    return blake2b(data, digest_size=_CHECKSUM_BYTES, person=b"pelton-cachefile").digest()
