"""Bring a file into the model cache whole or not at all.

A file is made in a staging folder beside its final place, under a lock that dies with its process, and renamed when it
is complete and on disk. Whatever a killed process left is removed by the next one. Knows nothing about where a file
comes from. Start at `open_staging`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from pelton.core.errors import DownloadError

_STAGING_PREFIX = ".pull-"
_LOCK_NAME = "lock"
_CHUNK_BYTES = 1 << 20
_MAX_LOCK_TRIES = 1000


@dataclass(frozen=True, slots=True)
class Staging:
    """A private folder for one file on its way into `parent`; removed when the pull ends, however it ends."""

    folder: Path
    parent: Path

    def commit(self, path: Path, name: str) -> Path:
        """Make the finished file `path` durable, give it its final `name` in `parent` in one step, return that path."""
        final_path = self.parent / name
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.replace(final_path)
        _sync_folder(self.parent)
        return final_path


@contextlib.contextmanager
def open_staging(parent: Path, key: str) -> Iterator[Staging]:
    """Lock and yield an empty staging folder in `parent`; waits while another process holds that of the same `key`.

    Raises `DownloadError` if `parent` cannot be written. On leaving, by whatever way, the folder is gone.
    """
    new_folders = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    with _turn_sigterm_into_exit():
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(parent)
            folder, lock = _lock_folder(parent / (_STAGING_PREFIX + key))
        except OSError as error:
            raise explain_os_error(error, parent) from error
        with lock:
            try:
                yield Staging(folder, parent)
            except BrokenPipeError:
                # Of whoever watches the progress, not of the disk.
                raise
            except OSError as error:
                raise explain_os_error(error, parent) from error
            finally:
                _remove_folder(folder)
                _remove_if_empty(new_folders)


def explain_os_error(error: OSError, path: Path) -> DownloadError:
    """Return the `DownloadError` that tells a person why `path` could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DownloadError(f"no space left in {path}; free some space or set PELTON_CACHE to another disk")
    reason = error.strerror or str(error)
    return DownloadError(f"{path} cannot be written: {reason}; PELTON_CACHE sets another cache folder")


def measure_largest(folder: Path) -> int:
    """Return the size in bytes of the largest file below `folder`, 0 if there is none."""
    largest = 0
    for path in folder.rglob("*"):
        try:
            largest = max(largest, path.stat().st_size if path.is_file() else 0)
        except OSError:
            # Its owner moved it meanwhile.
            continue
    return largest


def check_free_space(folder: Path, num_bytes: int) -> None:
    """Raise `DownloadError` if the disk of `folder` has fewer than `num_bytes` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise DownloadError(
            f"no space left: this needs {num_bytes / 1e6:.0f} MB in {folder}, which has {free / 1e6:.0f} MB free; "
            "free some space or set PELTON_CACHE to another disk"
        )


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file as lower-case hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _lock_folder(folder: Path) -> tuple[Path, BinaryIO]:
    """Make `folder` if need be; return it and its open and locked lock file."""
    for _ in range(_MAX_LOCK_TRIES):
        lock = _try_open_lock(folder)
        if lock is None:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_still_in(folder, lock):
                return folder, lock
        except BaseException:
            lock.close()
            raise
        # The one before us removed the folder, and this lock with it.
        lock.close()
    raise OSError(errno.EBUSY, f"{folder.name} is removed again and again by others")


def _try_open_lock(folder: Path) -> BinaryIO | None:
    """Return the open lock file of `folder`, or None if the one before us removed it while this looked."""
    # Not Path.mkdir(exist_ok=True), which fails if the folder goes while it looks.
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        folder.mkdir(parents=True)
    try:
        return (folder / _LOCK_NAME).open("ab")
    except FileNotFoundError:
        return None


def _is_still_in(folder: Path, lock: BinaryIO) -> bool:
    try:
        return os.path.samestat((folder / _LOCK_NAME).stat(), os.fstat(lock.fileno()))
    except FileNotFoundError:
        return False


def _remove_stale(parent: Path) -> None:
    """Remove staging folders whose process has gone, as their free locks show."""
    for folder in parent.glob(_STAGING_PREFIX + "*"):
        try:
            with (folder / _LOCK_NAME).open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_still_in(folder, lock):
                    _remove_folder(folder)
        except OSError:
            # Somebody is working in it, or has just removed it.
            continue


def _remove_folder(folder: Path) -> None:
    """Remove a staging folder whose lock is held: the lock goes last, for the next one may start once it is gone."""
    try:
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != _LOCK_NAME:
                entry.unlink()
        (folder / _LOCK_NAME).unlink()
        folder.rmdir()
    except OSError:
        # What cannot be removed now is stale, and the next pull tries again.
        return


def _remove_if_empty(folders: list[Path]) -> None:
    """Remove `folders`, innermost first, up to the first that holds something."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _turn_sigterm_into_exit() -> Iterator[None]:
    """While open, let SIGTERM unwind the stack instead of killing the process, so that the folder is removed."""
    is_ours = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if not is_ours:
        yield
        return
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
