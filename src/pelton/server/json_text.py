"""Strict JSON in, compact JSON out. NaN, infinities, halves of surrogate pairs and keys given twice are refused.

Start at `parse_json`. It knows text only.
"""

from __future__ import annotations

import json
import math

from pelton.core.errors import MalformedRequestError

# Each may open an array or object, and the parser makes these without letting another thread run: a million take half
# a second (measured 2026-11-29). Those in texts count too; a megabyte of source code has some tens of thousands.
MAX_NUM_BRACKETS = 2**17


def dump_json(value: object) -> bytes:
    """Compact ASCII JSON of a value made of dicts, lists, strings and numbers; raises ValueError for NaN."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def parse_json(data: bytes) -> object:
    """Parse UTF-8 JSON; raises `MalformedRequestError` that says where it goes wrong.

    Holds the interpreter lock for a few milliseconds at most: numbers go through Python functions, where another
    thread may take over.
    """
    num_brackets = data.count(b"[") + data.count(b"{")
    if num_brackets > MAX_NUM_BRACKETS:
        raise MalformedRequestError(f"the body has {num_brackets} brackets [ and {{; allowed: {MAX_NUM_BRACKETS}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedRequestError(f"the body is not UTF-8: byte {error.start} is wrong") from None
    try:
        value: object = json.loads(
            text,
            parse_float=_parse_float,
            parse_int=_parse_int,
            parse_constant=_refuse,
            object_pairs_hook=_make_object,
        )
    except json.JSONDecodeError as error:
        raise MalformedRequestError(
            f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    except RecursionError:
        raise MalformedRequestError("the body is nested too deeply") from None
    if "\\ud" in text or "\\uD" in text:
        _check_surrogates(value)
    return value


def _make_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    # json would keep the last value and say nothing.
    names = [name for name, _ in pairs]
    twice = next(name for position, name in enumerate(names) if name in names[:position])
    raise MalformedRequestError(f"the body holds the key {twice[:100]!r} twice in one object; allowed: each key once")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse(text)
    return value


def _parse_int(text: str) -> int:
    # Longer numbers mean nothing here, and converting them takes time that grows with the square of their length.
    if len(text) > 40:
        _refuse(f"{text[:20]}... ({len(text)} digits)")
    return int(text)


def _refuse(text: str) -> object:
    raise MalformedRequestError(f"the body holds the number {text}; allowed: finite numbers as JSON writes them")


def _check_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise MalformedRequestError(
            "the body holds half of a surrogate pair (\\ud800 to \\udfff); allowed: whole characters"
        ) from None
