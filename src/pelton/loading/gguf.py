"""Open a GGUF file (version 2 or 3): its metadata, and its tensors as views of a memory mapping.

Only data: knows nothing about models, and decodes no weights. Nothing in the file is trusted; every count, length,
offset and product is checked as an unbounded integer before it is used. Start at `open_gguf`.
Source of the layout: docs/gguf.md of the ggml project.
"""

from __future__ import annotations

import itertools
import math
import mmap
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from pelton.core.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from pelton.loading.gguf_values import MAX_NAME_BYTES, GgufCursor
from pelton.quant.block_types import BLOCK_TYPES, BlockType, describe_type, list_supported_names

SUPPORTED_VERSIONS = (2, 3)
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32
MIN_ALIGNMENT = 8

_MAGIC = b"GGUF"
_GIT_LFS_START = b"version https://git-lfs"
# A key of no bytes, its type and a value of one byte; a name of no bytes, one dimension, type and offset.
_MIN_ENTRY_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: `shape` in NumPy order (rows first), `data` its raw blocks, [num_bytes] u8, a view of the file."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    data: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _TensorInfo:
    """A tensor as described in the file: `offset` counts from the start of the data section."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    offset: int

    @property
    def num_bytes(self) -> int:
        return self.type.count_bytes(math.prod(self.shape))


class GgufFile:
    """An open GGUF file. `metadata` is independent of the mapping; `tensors[...].data` lives as long as it."""

    __slots__ = ("_mapping", "metadata", "path", "tensors", "version")

    def __init__(
        self,
        path: Path,
        version: int,
        metadata: dict[str, object],
        tensors: dict[str, GgufTensor],
        mapping: mmap.mmap,
    ) -> None:
        self.path = path
        self.version = version
        self.metadata = metadata
        self.tensors = tensors
        self._mapping = mapping

    def release_pages(self) -> None:
        """Let the system drop this process's pages of the file; reading a tensor again brings them back."""
        if sys.platform == "linux" and not self._mapping.closed:
            self._mapping.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Forget the tensors and unmap the file; views held elsewhere stay valid and keep it mapped."""
        self.tensors = {}
        try:
            self._mapping.close()
        except BufferError:
            # Someone still holds a view: the mapping ends with the last one.
            return

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_gguf(path: Path) -> GgufFile:
    """Map the GGUF file at `path` and read its header.

    Raises `ModelNotFoundError` if nothing is there, `ModelFileError` if it is not a sound GGUF file (naming the key
    or tensor at fault), `UnsupportedModelError` for a tensor type that Pelton does not implement.
    """
    mapping = _map_file(path)
    try:
        return _read_file(path, mapping)
    except BaseException:
        _close_quietly(mapping)
        raise


def _close_quietly(mapping: mmap.mmap) -> None:
    try:
        mapping.close()
    except BufferError:
        # Views made before the failure die with the exception's frames, and the mapping with them.
        return


def _map_file(path: Path) -> mmap.mmap:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ModelFileError(f"{path} is a directory; a GGUF file is needed")
        # Opening a pipe or a terminal would wait for ever.
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{path} is not a regular file; a GGUF file is needed")
        with path.open("rb") as file:
            start = file.read(len(_GIT_LFS_START))
            _check_start(path, start)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ModelNotFoundError(f"{path} does not exist") from error
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _check_start(path: Path, start: bytes) -> None:
    if not start:
        raise ModelFileError(f"{path} is empty (0 bytes); a GGUF file is needed")
    if start == _GIT_LFS_START:
        raise ModelFileError(f"{path} is a Git LFS pointer, not the model itself; fetch it with `git lfs pull`")
    if start[: len(_MAGIC)] != _MAGIC:
        raise ModelFileError(f"{path} is not a GGUF file: it starts with {start[:4]!r}, a GGUF file with {_MAGIC!r}")


def _read_file(path: Path, mapping: mmap.mmap) -> GgufFile:
    cursor = GgufCursor(mapping, str(path), position=len(_MAGIC))
    version = _read_version(cursor)
    num_tensors = cursor.read_u64("the number of tensors")
    num_entries = cursor.read_u64("the number of metadata keys")
    cursor.check_count(num_tensors, _MIN_TENSOR_BYTES, "the number of tensors")
    cursor.check_count(num_entries, _MIN_ENTRY_BYTES, "the number of metadata keys")
    metadata = _read_metadata(cursor, num_entries)
    alignment = _get_alignment(cursor, metadata)
    infos = _read_tensor_infos(cursor, num_tensors, alignment)
    data_start = -(-cursor.position // alignment) * alignment
    _check_extents(cursor, infos, data_start)
    whole = np.frombuffer(mapping, dtype=np.uint8)
    tensors = {}
    for info in infos:
        first = data_start + info.offset
        tensors[info.name] = GgufTensor(info.name, info.shape, info.type, whole[first : first + info.num_bytes])
    return GgufFile(path, version, metadata, tensors, mapping)


def _read_version(cursor: GgufCursor) -> int:
    version = cursor.read_u32("the version")
    if version in SUPPORTED_VERSIONS:
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if swapped in (1, *SUPPORTED_VERSIONS):
        raise cursor.fail(f"a big-endian GGUF file (version {swapped}); allowed: little-endian")
    raise cursor.fail(f"GGUF version {version}; allowed: {' and '.join(map(str, SUPPORTED_VERSIONS))}")


def _read_metadata(cursor: GgufCursor, num_entries: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for index in range(num_entries):
        key = cursor.read_string(f"the name of metadata key {index} of {num_entries}", MAX_NAME_BYTES)
        what = f"metadata key {_quote(key)}"
        if key in metadata:
            raise cursor.fail(f"{what} appears twice")
        type_id = cursor.read_u32(f"the type of {what}")
        metadata[key] = cursor.read_value(type_id, what)
    return metadata


def _get_alignment(cursor: GgufCursor, metadata: dict[str, object]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if (
        not isinstance(alignment, int)
        or isinstance(alignment, bool)
        or alignment < MIN_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        raise cursor.fail(
            f"metadata key 'general.alignment' is {alignment!r:.40}; allowed: a power of two of at least "
            f"{MIN_ALIGNMENT}"
        )
    return alignment


def _read_tensor_infos(cursor: GgufCursor, num_tensors: int, alignment: int) -> list[_TensorInfo]:
    infos: list[_TensorInfo] = []
    names: set[str] = set()
    for index in range(num_tensors):
        name = cursor.read_string(f"the name of tensor {index} of {num_tensors}", MAX_NAME_BYTES)
        what = f"tensor {_quote(name)}"
        if name in names:
            raise cursor.fail(f"{what} appears twice")
        names.add(name)
        infos.append(_read_tensor_info(cursor, name, what, alignment))
    return infos


def _read_tensor_info(cursor: GgufCursor, name: str, what: str, alignment: int) -> _TensorInfo:
    num_dims = cursor.read_u32(f"the number of dimensions of {what}")
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.fail(f"{what} has {num_dims} dimensions; allowed: 1 to {MAX_DIMS}")
    dims = [cursor.read_u64(f"dimension {axis} of {what}") for axis in range(num_dims)]
    type_id = cursor.read_u32(f"the type of {what}")
    offset = cursor.read_u64(f"the offset of {what}")
    if 0 in dims:
        raise cursor.fail(f"{what} has shape {dims}; allowed: every dimension at least 1")
    block_type = BLOCK_TYPES.get(type_id)
    if block_type is None:
        raise UnsupportedModelError(
            f"{cursor.source}: {what} has type {describe_type(type_id)}; supported: {list_supported_names()}"
        )
    if dims[0] % block_type.block_size:
        raise cursor.fail(
            f"{what} has rows of {dims[0]} elements; allowed for {block_type.name}: a multiple of "
            f"{block_type.block_size}"
        )
    if offset % alignment:
        raise cursor.fail(f"{what} starts at offset {offset}; allowed: a multiple of the alignment {alignment}")
    return _TensorInfo(name, tuple(reversed(dims)), block_type, offset)


def _check_extents(cursor: GgufCursor, infos: list[_TensorInfo], data_start: int) -> None:
    data_bytes = max(0, cursor.num_bytes - data_start)
    for info in infos:
        if info.offset + info.num_bytes > data_bytes:
            raise cursor.fail(
                f"the file is truncated or damaged: tensor {_quote(info.name)} {list(info.shape)} {info.type.name} "
                f"needs {info.num_bytes} bytes at offset {info.offset} of the {data_bytes} bytes of data"
            )
    ordered = sorted(infos, key=lambda info: info.offset)
    for before, after in itertools.pairwise(ordered):
        if before.offset + before.num_bytes > after.offset:
            raise cursor.fail(
                f"tensor {_quote(before.name)} (offset {before.offset}, {before.num_bytes} bytes) overlaps tensor "
                f"{_quote(after.name)} (offset {after.offset})"
            )


def _quote(name: str) -> str:
    """Quote a name from the file for a one-line message; an over-long one is shortened."""
    return repr(name if len(name) <= 80 else name[:77] + "...")
