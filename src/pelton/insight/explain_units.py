"""Numbers as people read them: times, bytes, operations, rates, shares. Pure functions of floats."""

from __future__ import annotations

from collections.abc import Sequence

from pelton.core.percentile import get_percentile


def format_time(seconds: float) -> str:
    """Seconds with a unit and three digits: 300 s, 12.3 s, 45.6 ms, 7.89 us."""
    if seconds >= 99.95:
        return f"{seconds:,.0f} s"
    if seconds >= 9.995:
        return f"{seconds:,.1f} s"
    if seconds >= 0.9995:
        return f"{seconds:.2f} s"
    if seconds >= 0.9995e-3 or seconds <= 0:
        return f"{_round(seconds * 1e3)} ms"
    return f"{_round(seconds * 1e6)} us"


def format_bytes(num_bytes: float) -> str:
    """Bytes with a decimal unit and three digits."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if num_bytes >= 0.9995 * size:
            return f"{_round(num_bytes / size)} {unit}"
    return f"{num_bytes:.0f} B"


def format_ops(num_ops: float) -> str:
    """Operations with a unit and three digits; a multiply-add is two."""
    for unit, size in (("Pop", 1e15), ("Top", 1e12), ("Gop", 1e9), ("Mop", 1e6)):
        if num_ops >= 0.9995 * size:
            return f"{_round(num_ops / size)} {unit}"
    return f"{_round(num_ops / 1e3)} kop"


def format_share(share: float) -> str:
    """A share of 0 to 1 in percent."""
    return f"{share * 100:.0f} %" if share >= 0.095 or share <= 0 else f"{share * 100:.1f} %"


def format_count(count: float, noun: str) -> str:
    """A count with its noun, which takes an s for all but one."""
    return f"{count:,.0f} {noun}{'s' * (round(count) != 1)}"


def format_value(value: float | int | str) -> str:
    """A fact's value."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else _round(value)


def get_quantile(values: Sequence[float], fraction: float) -> float:
    """Quantile of at least one value, in whatever order."""
    return get_percentile(sorted(values), fraction)


def _round(value: float) -> str:
    """Three digits, whole thousands apart."""
    size = abs(value)
    digits = 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.0995 or size == 0 else 3
    return f"{value:,.{digits}f}"
