"""Fetch a file of a Hugging Face repository with huggingface_hub, which knows tokens, mirrors and resuming.

The library is imported on first use. Knows its calls and errors, not what the file is for. Start at `download_file`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pelton.core.errors import DownloadError
from pelton.loading.references import MODEL_SUFFIX, HubReference, list_names
from pelton.loading.staging import measure_largest

_POLL_S = 0.1
_MAX_REASON_LENGTH = 300


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository; `num_bytes` and `sha256` are None where the server does not say."""

    repo_id: str
    name: str
    num_bytes: int | None
    sha256: str | None


def find_file(reference: HubReference) -> HubFile:
    """Ask the server for the file `reference` names, or for the repository's only GGUF file.

    Raises `DownloadError` if it cannot be reached, does not exist, needs permission or is ambiguous.
    """
    import huggingface_hub

    repo_id = reference.repo_id
    try:
        # Of the calls that list files this one does not retry for half a minute when there is no network.
        info = huggingface_hub.HfApi().model_info(repo_id, files_metadata=True)
    # Exception: the library raises those of its HTTP client too, which changes between its versions.
    except Exception as error:
        raise _explain(f"hf:{repo_id}", error) from error
    siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
    name = reference.file or _choose_file(repo_id, list(siblings))
    if name not in siblings:
        models = list_names(_list_models(siblings)) or "none"
        raise DownloadError(f"hf:{repo_id} has no file {name!r}; its .gguf files: {models}")
    lfs = siblings[name].lfs
    return HubFile(repo_id, name, siblings[name].size, lfs.sha256 if lfs is not None else None)


def download_file(file: HubFile, folder: Path, report: Callable[[int], None]) -> Path:
    """Download `file` below `folder`, going on where an earlier try stopped; return its path.

    `report` gets the bytes received so far, from another thread. Raises `DownloadError`.
    """
    import huggingface_hub

    try:
        with _silence_library(), _Watcher(folder, report):
            return Path(huggingface_hub.hf_hub_download(file.repo_id, file.name, local_dir=folder))
    # Exception: the library raises those of its HTTP client too, which changes between its versions.
    except Exception as error:
        raise _explain(f"hf:{file.repo_id}/{file.name}", error) from error


@contextlib.contextmanager
def _silence_library() -> Iterator[None]:
    """While open, the library draws no bars of its own and logs only errors."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    had_bars = not are_progress_bars_disabled()
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    disable_progress_bars()
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
        if had_bars:
            enable_progress_bars()


def _list_models(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if name.lower().endswith(MODEL_SUFFIX))


def _choose_file(repo_id: str, names: list[str]) -> str:
    models = _list_models(names)
    if len(models) == 1:
        return models[0]
    if not models:
        raise DownloadError(f"hf:{repo_id} holds no .gguf file")
    raise DownloadError(f"hf:{repo_id} holds more than one .gguf file; add /file, one of: {list_names(models)}")


def _explain(what: str, error: Exception) -> DownloadError:
    """Return one line for a person: the kind of failure, then the library's first line."""
    from huggingface_hub import errors

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = (lines[0] if lines else type(error).__name__)[:_MAX_REASON_LENGTH]
    if isinstance(error, errors.GatedRepoError):
        return DownloadError(f"{what} needs permission: accept its terms on the site and log in with `hf auth login`")
    if isinstance(error, errors.RepositoryNotFoundError):
        return DownloadError(f"{what} does not exist, or needs a login (`hf auth login`)")
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return DownloadError(f"{what} does not exist in the repository")
    if isinstance(error, errors.OfflineModeIsEnabled):
        return DownloadError(f"{what} could not be reached: HF_HUB_OFFLINE is set")
    if isinstance(error, errors.HFValidationError):
        return DownloadError(f"{what} is not a repository name: {reason}")
    return DownloadError(f"{what} could not be reached: {reason}")


class _Watcher:
    """While open, reports the size of the largest file below a folder from a thread of its own."""

    def __init__(self, folder: Path, report: Callable[[int], None]) -> None:
        self._folder = folder
        self._report = report
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pelton-pull", daemon=True)

    def __enter__(self) -> _Watcher:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(_POLL_S):
            self._report(measure_largest(self._folder))
