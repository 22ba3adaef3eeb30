"""Read the primitive values of a GGUF file: integers, strings and metadata values, each checked before use.

Knows the encoding of values, not what any key or tensor means. Every count and length is compared with the bytes
that are left before anything is read or allocated. Start at `GgufCursor.read_value`.
Source of the layout: docs/gguf.md of the ggml project.
"""

from __future__ import annotations

import mmap
import struct

import numpy as np
import numpy.typing as npt

from pelton.core.errors import ModelFileError
from pelton.loading.gguf_strings import read_strings

MAX_NAME_BYTES = 65535
MAX_ARRAY_DEPTH = 4
# An empty array takes 12 bytes of the file and several times that as an object.
MAX_NESTED_ARRAYS = 65536
# Longer numeric arrays stay NumPy arrays: a vocabulary's scores need no 100,000 Python floats.
MAX_LIST_LENGTH = 1024

_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBER_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d"}
_NUMBER_STRUCTS = {type_id: struct.Struct("<" + code) for type_id, code in _NUMBER_FORMATS.items()}
_NUMBER_DTYPES = {type_id: np.dtype(code).newbyteorder("<") for type_id, code in _NUMBER_FORMATS.items()}
_TYPE_NAMES = "u8, i8, u16, i16, u32, i32, f32, bool, string, array, u64, i64, f64 (0 to 12)"
_MIN_VALUE_BYTES = {_BOOL: 1, _STRING: 8, _ARRAY: 12, **{t: s.size for t, s in _NUMBER_STRUCTS.items()}}
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class GgufCursor:
    """A position in a mapped GGUF file. Each `read_*` moves it; `what` names the thing being read in errors."""

    __slots__ = ("buffer", "num_bytes", "num_nested_arrays", "position", "source")

    def __init__(self, buffer: mmap.mmap | bytes, source: str, position: int = 0) -> None:
        self.buffer = buffer
        self.num_bytes = len(buffer)
        self.num_nested_arrays = 0
        self.source = source
        self.position = position

    def fail(self, message: str) -> ModelFileError:
        """Return (not raise) the error for `message`, with the file's name in front."""
        return ModelFileError(f"{self.source}: {message}")

    def take(self, num_bytes: int, what: str) -> int:
        """Move past `num_bytes` bytes and return where they start; `ModelFileError` if the file has not so many."""
        start = self.position
        if num_bytes > self.num_bytes - start:
            raise self.fail(
                f"the file is truncated or damaged: {what} needs {num_bytes} bytes at offset {start}, "
                f"but the file has {self.num_bytes} bytes"
            )
        self.position = start + num_bytes
        return start

    def check_count(self, count: int, min_item_bytes: int, what: str) -> None:
        """Raise `ModelFileError` if `count` items of at least `min_item_bytes` cannot fit into what is left."""
        left = self.num_bytes - self.position
        if count * min_item_bytes > left:
            raise self.fail(
                f"{what} is {count}, but the {left} bytes left in the file hold at most {left // min_item_bytes}"
            )

    def read_u32(self, what: str) -> int:
        """Read a 32-bit unsigned integer."""
        value: int = _U32.unpack_from(self.buffer, self.take(4, what))[0]
        return value

    def read_u64(self, what: str) -> int:
        """Read a 64-bit unsigned integer."""
        value: int = _U64.unpack_from(self.buffer, self.take(8, what))[0]
        return value

    def read_string(self, what: str, max_bytes: int | None = None) -> str:
        """Read a length-prefixed UTF-8 string of at most `max_bytes` bytes."""
        length = self.read_u64(f"the length of {what}")
        if max_bytes is not None and length > max_bytes:
            raise self.fail(f"{what} is {length} bytes long; allowed: at most {max_bytes}")
        start = self.take(length, what)
        return self._decode(self.buffer[start : start + length], what)

    def read_value(self, type_id: int, what: str, depth: int = 0) -> object:
        """Read one metadata value: int, float, bool, str, a list, or a NumPy array for a long numeric array."""
        number = _NUMBER_STRUCTS.get(type_id)
        if number is not None:
            value: object = number.unpack_from(self.buffer, self.take(number.size, what))[0]
            return value
        if type_id == _STRING:
            return self.read_string(what)
        if type_id == _BOOL:
            return bool(self._read_bools(1, what)[0])
        if type_id == _ARRAY:
            return self._read_array(what, depth)
        raise self.fail(f"{what} has value type {type_id}; allowed: {_TYPE_NAMES}")

    def _read_array(self, what: str, depth: int) -> object:
        if depth >= MAX_ARRAY_DEPTH:
            raise self.fail(f"{what} nests arrays deeper than {MAX_ARRAY_DEPTH} levels")
        item_type = self.read_u32(f"the item type of {what}")
        count = self.read_u64(f"the length of {what}")
        if item_type not in _MIN_VALUE_BYTES:
            raise self.fail(f"{what} has item type {item_type}; allowed: {_TYPE_NAMES}")
        self.check_count(count, _MIN_VALUE_BYTES[item_type], f"the length of {what}")
        if item_type == _STRING:
            return self._read_strings(count, what)
        if item_type == _BOOL:
            return self._read_bools(count, what)
        if item_type == _ARRAY:
            self.num_nested_arrays += count
            if self.num_nested_arrays > MAX_NESTED_ARRAYS:
                raise self.fail(f"{what} brings the file over {MAX_NESTED_ARRAYS} arrays inside arrays")
            return [self._read_array(f"{what}[{index}]", depth + 1) for index in range(count)]
        dtype = _NUMBER_DTYPES[item_type]
        start = self.take(count * dtype.itemsize, what)
        # A copy: the values must outlive the mapping.
        numbers = np.frombuffer(self.buffer[start : self.position], dtype=dtype)
        return numbers if count > MAX_LIST_LENGTH else numbers.tolist()

    def _read_bools(self, count: int, what: str) -> list[bool] | npt.NDArray[np.bool_]:
        start = self.take(count, what)
        raw = self.buffer[start : start + count]
        others = raw.translate(None, b"\x00\x01")
        if others:
            raise self.fail(f"{what} holds the byte {others[0]} as a bool; allowed: 0 or 1")
        bools = np.frombuffer(raw, dtype=np.bool_)
        return bools if count > MAX_LIST_LENGTH else bools.tolist()

    def _read_strings(self, count: int, what: str) -> list[str]:
        strings: list[str] = []
        try:
            self.position = read_strings(self.buffer, self.position, count, strings)
        except UnicodeDecodeError as error:
            raise self._fail_utf8(f"{what}[{len(strings)}]", error) from error
        if len(strings) < count:
            raise self.fail(
                f"the file is truncated or damaged: string {len(strings)} of {count} of {what} does not end within the "
                f"file's {self.num_bytes} bytes"
            )
        return strings

    def _decode(self, raw: bytes, what: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self._fail_utf8(what, error) from error

    def _fail_utf8(self, what: str, error: UnicodeDecodeError) -> ModelFileError:
        return self.fail(f"{what} is not valid UTF-8: byte {error.object[error.start]:#04x} at {error.start}")
