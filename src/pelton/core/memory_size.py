"""`MemorySize`: an amount of memory as people write it: bytes, with a unit, or a share of what is free."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pelton.core.errors import InvalidParameterError

# Powers of 1024 as IEC 80000-13 names them, powers of 1000 as SI does.
_UNITS = {
    "": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
}  # fmt: skip
_FORM = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*|%)", re.ASCII)
_ALLOWED = "bytes (4294967296), bytes with a unit (4GiB, 500MB) or a share of the free memory (50%)"


@dataclass(frozen=True, slots=True)
class MemorySize:
    """Exactly one is set: `num_bytes`, or `share` (more than 0, at most 1) of the free memory."""

    num_bytes: int | None = None
    share: float | None = None

    def compute_bytes(self, free_bytes: int) -> int:
        """The size in bytes where `free_bytes` are free."""
        return int(self.share * free_bytes) if self.share is not None else self.num_bytes or 0


def parse_memory_size(name: str, value: object) -> MemorySize:
    """Read an int (bytes) or a text like "4GiB" or "50%". InvalidParameterError, naming `name`, for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return MemorySize(num_bytes=value)
    match = _FORM.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise InvalidParameterError(name, value, _ALLOWED)
    number, unit = float(match[1]), match[2].upper()
    if unit == "%" and 0 < number <= 100:
        return MemorySize(share=number / 100)
    if unit not in _UNITS or int(number * _UNITS[unit]) < 1:
        raise InvalidParameterError(name, value, _ALLOWED)
    # An integer stays exact: 2^53 is not the end of memory sizes people write in bytes.
    num_bytes = int(match[1]) * _UNITS[unit] if match[1].isdigit() else int(number * _UNITS[unit])
    return MemorySize(num_bytes=num_bytes)
