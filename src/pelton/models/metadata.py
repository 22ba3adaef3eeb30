"""Typed reads from a model file's metadata; every wrong type or value is an error that names the key."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pelton.core.errors import ModelFileError


class Metadata:
    """Read-only access to metadata under the prefix of one architecture (`llama.` ...)."""

    def __init__(self, values: Mapping[str, object], architecture: str) -> None:
        self._values = values
        self._prefix = architecture + "."

    def get_int(self, key: str, default: int | None = None, *, maximum: int = 2**31 - 1) -> int:
        """Return an integer from 1 to `maximum`; `default` if the key is absent (None: the key is required)."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
            raise ModelFileError(f"metadata key {self._prefix}{key} is {value!r}; allowed: an integer, 1 to {maximum}")
        return value

    def get_float(self, key: str, default: float | None = None) -> float:
        """Return a positive finite number; `default` if the key is absent (None: the key is required)."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise ModelFileError(f"metadata key {self._prefix}{key} is {value!r}; allowed: a positive number")
        return float(value)

    def get_str(self, key: str, default: str) -> str:
        """Return a string; `default` if the key is absent."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise ModelFileError(f"metadata key {self._prefix}{key} is {value!r}; allowed: a string")
        return value

    def has(self, key: str) -> bool:
        """Whether the key is present."""
        return self._prefix + key in self._values

    def _get(self, key: str, default: object) -> object:
        value = self._values.get(self._prefix + key, default)
        if value is None:
            raise ModelFileError(f"metadata key {self._prefix}{key} is missing")
        return value
