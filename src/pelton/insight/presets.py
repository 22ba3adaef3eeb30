"""Models that can be planned for without any file: published configs under `presets/`, as data.

Start at `find_preset`. To add one, put its published config.json and where it is from into a file of that folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pelton.insight.model_shape import ModelShape
from pelton.insight.shape_from_config import read_shape

_FOLDER = Path(__file__).parent / "presets"


@dataclass(frozen=True, slots=True)
class Preset:
    """A model's shape, the formats it is published in ("default", and roles that differ), and where that is said."""

    name: str
    source: str
    shape: ModelShape
    weights: Mapping[str, str]
    kv_cache_dtype: str


def list_presets() -> list[str]:
    """Names of all presets, in order."""
    return sorted(_read_entries())


def find_preset(name: str) -> Preset | None:
    """The preset called `name` (case does not matter), None if there is none."""
    wanted = name.lower()
    for key, entry in _read_entries().items():
        if wanted == key or wanted in entry.get("aliases", ()):
            weights = entry["weights"]
            return Preset(
                name=key,
                source=entry["source"],
                shape=read_shape(entry["config"], key),
                weights={"default": weights} if isinstance(weights, str) else weights,
                kv_cache_dtype=entry["kv_cache_dtype"],
            )
    return None


def _read_entries() -> dict[str, dict[str, Any]]:  # Any: JSON, whose one reader is `find_preset`
    entries: dict[str, dict[str, Any]] = {}  # Any: see above
    for path in sorted(_FOLDER.glob("*.json")):
        entries.update(json.loads(path.read_text(encoding="utf-8")))
    return entries
