"""Percentiles. Start at `get_percentile`."""

from __future__ import annotations

from collections.abc import Sequence


def get_percentile(ordered: Sequence[float], fraction: float) -> float:
    """Quantile of ascending values by linear interpolation between neighbours (Hyndman and Fan 1996, definition 7)."""
    position = (len(ordered) - 1) * fraction
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)
