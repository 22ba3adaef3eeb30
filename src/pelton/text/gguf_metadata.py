"""Typed, checked reading of `tokenizer.ggml.*` keys from GGUF metadata; nothing in it is trusted.

It must not know what the values mean. Start at `TokenizerMetadata`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pelton.core.errors import ModelFileError

PREFIX = "tokenizer.ggml."


class TokenizerMetadata:
    """Access to the keys below `tokenizer.ggml.`; each getter raises `ModelFileError` naming key and value."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def get_string(self, name: str) -> str | None:
        """Return a string, None if the key is absent."""
        value = self._metadata.get(PREFIX + name)
        if value is not None and not isinstance(value, str):
            raise _wrong_type(name, value, "a string")
        return value

    def get_flag(self, name: str, default: bool) -> bool:
        """Return a boolean, `default` if the key is absent."""
        value = self._metadata.get(PREFIX + name, default)
        if not isinstance(value, (bool, np.bool_)):
            raise _wrong_type(name, value, "a boolean")
        return bool(value)

    def get_token_id(self, name: str, num_tokens: int) -> int | None:
        """Return an id from 0 to `num_tokens` - 1, None if the key is absent."""
        value = self._metadata.get(PREFIX + name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise _wrong_type(name, value, "a token id")
        if not 0 <= value < num_tokens:
            raise ModelFileError(f"{PREFIX}{name} is {value}; allowed: token ids 0 to {num_tokens - 1}")
        return int(value)

    def get_strings(self, name: str) -> list[str]:
        """Return a list of strings, which must be there and not be empty."""
        value = self._metadata.get(PREFIX + name)
        if value is None:
            raise ModelFileError(f"{PREFIX}{name} is missing; it must be a list of strings")
        if not isinstance(value, (list, tuple)) or set(map(type, value)) != {str}:
            raise _wrong_type(name, value, "a list of strings with at least one entry")
        return list(value)

    def get_integers(self, name: str, count: int, allowed: range) -> list[int] | None:
        """Return `count` integers within `allowed`, None if the key is absent."""
        numbers = self._get_numbers(name, count)
        if numbers is None:
            return None
        for number in set(numbers):  # a handful of values, where checking each entry would take milliseconds
            if isinstance(number, float) or number not in allowed:
                raise ModelFileError(
                    f"{PREFIX}{name}[{numbers.index(number)}] is {number!r}; "
                    f"allowed: integers {allowed.start} to {allowed.stop - 1}"
                )
        return list(map(int, numbers))

    def get_floats(self, name: str, count: int) -> list[float] | None:
        """Return `count` finite numbers, None if the key is absent."""
        numbers = self._get_numbers(name, count)
        if numbers is None:
            return None
        if not all(map(math.isfinite, numbers)):
            index = next(i for i, number in enumerate(numbers) if not math.isfinite(number))
            raise ModelFileError(f"{PREFIX}{name}[{index}] is {numbers[index]!r}; allowed: finite numbers")
        return [float(number) for number in numbers]

    def _get_numbers(self, name: str, count: int) -> Sequence[int | float] | None:
        value = self._metadata.get(PREFIX + name)
        if value is None:
            return None
        numbers = value.tolist() if isinstance(value, np.ndarray) else value
        if not isinstance(numbers, (list, tuple)) or not set(map(type, numbers)) <= {int, float}:
            raise _wrong_type(name, value, "a list of numbers")
        if len(numbers) != count:
            raise ModelFileError(f"{PREFIX}{name} has {len(numbers)} entries; it must have {count}, one for each token")
        return numbers


def _wrong_type(name: str, value: object, allowed: str) -> ModelFileError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"a {type(value).__name__} beginning {shown[:50]}"
    return ModelFileError(f"{PREFIX}{name} is {shown}; it must be {allowed}")
