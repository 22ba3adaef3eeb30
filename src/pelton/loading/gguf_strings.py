"""Read long arrays of length-prefixed strings fast: a vocabulary has 100,000 of them and start-up waits for it.

Knows one encoding (64-bit little-endian length, then UTF-8 bytes), nothing about files or keys. Most strings are
between 1 and 255 bytes and hold no NUL, so the only zero bytes are the seven high bytes of each length: NumPy finds
and checks all lengths of a window at once. Whatever does not fit that picture is read one by one.
Start at `read_strings`.
"""

from __future__ import annotations

import mmap
import struct

import numpy as np

_WINDOW_BYTES = 1 << 20
# After strings the fast way cannot read: enough to pay for scanning another window.
_SLOW_BATCH = 4096
_U64 = struct.Struct("<Q")


def read_strings(buffer: mmap.mmap | bytes, position: int, count: int, strings: list[str]) -> int:
    """Append up to `count` strings from `position` on to `strings`; return the position after the last one.

    Fewer are appended when the buffer ends first. Raises `UnicodeDecodeError` at the first string that is not UTF-8,
    when all before it have been appended.
    """
    count += len(strings)
    while len(strings) < count:
        position = _read_window(buffer, position, count, strings)
        num_wanted = min(len(strings) + _SLOW_BATCH, count)
        position = _read_one_by_one(buffer, position, num_wanted, strings)
        if len(strings) < num_wanted:
            break
    return position


def _read_window(buffer: mmap.mmap | bytes, position: int, count: int, strings: list[str]) -> int:
    """Append strings while they are regular and fewer than `count`; return where it stopped."""
    while len(strings) < count:
        window = np.frombuffer(buffer[position : position + _WINDOW_BYTES], dtype=np.uint8)
        length_starts, end = _find_lengths(window, count - len(strings))
        if not len(length_starts):
            return position
        text = window[8:end].copy()
        # With the low bytes gone too, strings are parted by eight zeros and nothing else.
        text[length_starts[1:] - 8] = 0
        try:
            strings += text.tobytes().decode().split("\0" * 8)
        except UnicodeDecodeError:
            return position
        position += end
    return position


def _find_lengths(
    window: np.ndarray[tuple[int], np.dtype[np.uint8]], count: int
) -> tuple[np.ndarray[tuple[int], np.dtype[np.intp]], int]:
    """Return where the lengths of the leading regular strings start in `window`, and where the last string ends."""
    zeros = np.flatnonzero(window == 0)
    num_candidates = min(len(zeros) // 7, count)
    groups = zeros[: num_candidates * 7].reshape(num_candidates, 7)
    starts = groups[:, 0] - 1
    if not num_candidates or starts[0] != 0:
        return starts[:0], 0
    ends = starts + 8 + window[starts]
    # By induction: the first length starts at 0, and each next one where the string before it ends.
    is_regular = groups[:, 6] - groups[:, 0] == 6
    is_regular[1:] &= ends[:-1] == starts[1:]
    is_regular &= ends <= len(window)
    num_regular = num_candidates if is_regular.all() else int(np.argmin(is_regular))
    # A NUL in any string but the last one has broken the chain already.
    next_zeros = zeros[num_regular * 7 :]
    if num_regular and len(next_zeros) and next_zeros[0] < ends[num_regular - 1]:
        num_regular -= 1
    return starts[:num_regular], int(ends[num_regular - 1]) if num_regular else 0


def _read_one_by_one(buffer: mmap.mmap | bytes, position: int, count: int, strings: list[str]) -> int:
    """Append strings until there are `count` or the buffer ends; return where it stopped."""
    num_bytes = len(buffer)
    while len(strings) < count:
        start = position + 8
        if start > num_bytes:
            break
        end = start + _U64.unpack_from(buffer, position)[0]
        if end > num_bytes:
            break
        strings.append(buffer[start:end].decode())
        position = end
    return position
