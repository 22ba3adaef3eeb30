"""Checks of `SamplingParams` that a field's range cannot express: lists, and fields that depend on each other.

All raise `InvalidParameterError` naming the field, the value and what is allowed. Start at `check_numbers_together`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from pelton.core.errors import InvalidParameterError

T = TypeVar("T")

MAX_NUM_STRINGS = 64
MAX_NUM_BAD_SEQUENCES = 4 * MAX_NUM_STRINGS


def check_numbers_together(min_tokens: int, max_tokens: int | None, n: int, best_of: int | None, mirostat: int) -> None:
    """Check min_tokens <= max_tokens, best_of >= n and the versions of mirostat."""
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidParameterError("min_tokens", min_tokens, f"0 to {max_tokens}, which is max_tokens")
    if best_of is not None and best_of < n:
        raise InvalidParameterError("best_of", best_of, f"at least {n}, which is n")
    if mirostat not in (0, 2):
        raise InvalidParameterError("mirostat", mirostat, "0 (off) or 2")


def as_strings(name: str, value: str | Sequence[str]) -> tuple[str, ...]:
    """Return non-empty strings as a tuple; one string counts as a list of one."""
    strings = (value,) if isinstance(value, str) else _as_tuple(name, value, "strings")
    if len(strings) > MAX_NUM_STRINGS:
        raise InvalidParameterError(name, f"{len(strings)} strings", f"at most {MAX_NUM_STRINGS} strings")
    for string in strings:
        if not isinstance(string, str) or not string:
            raise InvalidParameterError(name, string, "non-empty strings")
    return strings


def as_token_ids(name: str, value: Sequence[int]) -> tuple[int, ...]:
    """Return token ids as a tuple; each must be an integer from 0."""
    token_ids = _as_tuple(name, value, "token ids")
    for token_id in token_ids:
        _check_token_id(name, token_id)
    return token_ids


def as_token_sequences(name: str, value: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return sequences of token ids as tuples; none may be empty."""
    sequences = tuple(as_token_ids(name, sequence) for sequence in _as_tuple(name, value, "sequences of token ids"))
    if len(sequences) > MAX_NUM_BAD_SEQUENCES:
        raise InvalidParameterError(name, f"{len(sequences)} sequences", f"at most {MAX_NUM_BAD_SEQUENCES} sequences")
    for sequence in sequences:
        if not sequence:
            raise InvalidParameterError(name, sequence, "sequences of at least one token id")
    return sequences


def check_logit_bias(logit_bias: Mapping[int, float]) -> None:
    """Check token ids and that every bias is a number from -100 to 100."""
    if not isinstance(logit_bias, Mapping):
        raise InvalidParameterError("logit_bias", logit_bias, "a mapping of token ids to numbers")
    for token_id, bias in logit_bias.items():
        _check_token_id("logit_bias", token_id)
        is_number = isinstance(bias, (int, float)) and not isinstance(bias, bool)
        if not is_number or not math.isfinite(bias) or not -100 <= bias <= 100:
            raise InvalidParameterError(f"logit_bias[{token_id}]", bias, "a number from -100 to 100")


def _as_tuple(name: str, value: Iterable[T], items: str) -> tuple[T, ...]:
    # Text and mappings can be iterated over, but nobody means their characters or keys.
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise InvalidParameterError(name, value, f"a list of {items}")
    return tuple(value)


def _check_token_id(name: str, token_id: object) -> None:
    if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
        raise InvalidParameterError(name, token_id, "token ids, integers from 0")
