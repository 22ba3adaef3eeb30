"""Where a model's file lies in the cache, and whether the file there is the right one.

Knows the layout of the cache folder, nothing about sources. Start at `get_place`.

    <cache>/models/<file>                              known models
    <cache>/models/pypi/<package>-<version>/<file>     pypi: references
    <cache>/models/hf/<org>/<repo>/<file>              hf: references
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pelton.loading.catalog import CatalogEntry
from pelton.loading.references import HubReference, PypiReference, list_model_files

_MODELS_FOLDER = "models"


@dataclass(frozen=True, slots=True)
class CachePlace:
    """The place of one file. `name` None means the only GGUF file there; sizes and SHA-256 are None unless pinned."""

    folder: Path
    name: str | None
    num_bytes: int | None = None
    sha256: str | None = None
    download_bytes: int | None = None

    def find(self) -> Path | None:
        """Return the file if it is there and has the pinned size."""
        if self.name is None:
            files = list_model_files(self.folder)
            return files[0] if len(files) == 1 else None
        path = self.folder / self.name
        if not path.is_file() or (self.num_bytes is not None and path.stat().st_size != self.num_bytes):
            return None
        return path

    def find_sound(self) -> Path | None:
        """Return the file if it is there, has the pinned size and, read as a whole, the pinned hash."""
        path = self.find()
        if path is None or self.sha256 is None:
            return path
        # Here and not above: a run only needs `find`, and this import costs start-up time.
        from pelton.loading.staging import hash_file

        return path if hash_file(path) == self.sha256 else None


def get_place(reference: CatalogEntry | PypiReference | HubReference, cache_dir: Path) -> CachePlace:
    """Return the place of the file that `reference` names."""
    models = cache_dir / _MODELS_FOLDER
    if isinstance(reference, CatalogEntry):
        return CachePlace(models, reference.file_name, reference.num_bytes, reference.sha256, reference.download_bytes)
    if isinstance(reference, PypiReference):
        # Two spellings of a package are one package (PEP 503).
        package = re.sub(r"[-_.]+", "-", reference.package).lower()
        name = None if reference.member is None else reference.member.rpartition("/")[2]
        return CachePlace(models / "pypi" / f"{package}-{reference.version}", name)
    folder, _, name = (reference.file or "").rpartition("/")
    return CachePlace(models / "hf" / reference.repo_id / folder, name or None)
