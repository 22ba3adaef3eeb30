"""Limits of a chat template while it renders: time, text and memory. A template comes with a model file, so it may be
hostile; every value it makes is measured before or just after it is made.

Work is counted in bytes, charged to one `TemplateBudget` per rendering. Values never change once made (the sandbox is
immutable), so each container is measured once. It must not know what is rendered. Start at `TemplateBudget`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from jinja2.runtime import Undefined

# Published templates are much shorter (OpenAI's gpt-oss: 16,738 characters); the largest allowed compiles within a
# second, without the limits it would take seconds and 100 MB.
MAX_SOURCE_CHARACTERS = 1 << 16
MAX_SOURCE_NODES = 8_000
MAX_RENDER_S = 1.0
# A template of today spends some 100 kB on a short chat; a hostile one is stopped well below 100 MB of real memory.
BASE_BUDGET_BYTES = 32 << 20
BYTES_PER_INPUT_CHARACTER = 256
# Longest single string, and longest text of a container, in characters.
BASE_TEXT_CHARACTERS = 1 << 20
TEXT_PER_INPUT_CHARACTER = 8
STEP_BYTES = 64
MAX_INTEGER_BITS = 4096
MAX_DEPTH = 64
MAX_WIDTH = 1000

_EMPTY: dict[str, object] = {}
_VIEW_TYPES = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))


class TemplateLimitError(Exception):
    """A template exceeded a limit; the message says which one."""


class Extent(NamedTuple):
    """Size of a value: characters of its text, values inside (itself included), nesting, whether it is plain data."""

    num_characters: int
    num_values: int
    depth: int
    is_data: bool


class TemplateBudget:
    """What one rendering may still spend, in the thread that makes this object.

    `num_input_characters`: the text of messages and variables given to it.
    """

    def __init__(self, num_input_characters: int = 0, max_render_s: float = MAX_RENDER_S) -> None:
        self.max_text = BASE_TEXT_CHARACTERS + TEXT_PER_INPUT_CHARACTER * num_input_characters
        self._bytes_left = BASE_BUDGET_BYTES + BYTES_PER_INPUT_CHARACTER * num_input_characters
        self._max_render_s = max_render_s
        self._deadline_s = time.monotonic() + max_render_s
        self._cpu_deadline_s = time.thread_time() + max_render_s
        # Keeps the measured containers alive, so that an id stands for one container only.
        self._measured: dict[int, tuple[object, Extent]] = {}

    def spend(self, num_bytes: int = STEP_BYTES) -> None:
        """Charge work; raise `TemplateLimitError` if the budget or the time is used up."""
        self._bytes_left -= num_bytes
        if self._bytes_left < 0:
            raise TemplateLimitError("the chat template does too much work (it makes or handles too many values)")
        # On a busy machine the thread may have waited for most of that time; the clock that tells is a slow one.
        if time.monotonic() > self._deadline_s and time.thread_time() > self._cpu_deadline_s:
            raise TemplateLimitError(f"the chat template takes more than {self._max_render_s:g} s")

    def check_text(self, num_characters: int) -> None:
        """Raise `TemplateLimitError` if a text of this length must not be made."""
        if num_characters > self.max_text:
            raise TemplateLimitError(
                f"the chat template makes a text of {num_characters} characters; allowed: {self.max_text}"
            )

    def check_integer(self, num_bits: int) -> None:
        """Raise `TemplateLimitError` if an integer of this size must not be made."""
        if num_bits > MAX_INTEGER_BITS:
            raise TemplateLimitError(
                f"the chat template makes a number of {num_bits} bits; allowed: {MAX_INTEGER_BITS}"
            )

    def check_width(self, width: object) -> None:
        """Raise `TemplateLimitError` if a width, count or precision is larger than any template needs."""
        if isinstance(width, (int, float)) and abs(width) > MAX_WIDTH:
            raise TemplateLimitError(f"the chat template asks for a width or count of {width}; allowed: {MAX_WIDTH}")

    def admit(self, value: object) -> object:
        """Charge a value that was just made and return it; an iterator is turned into a list."""
        if isinstance(value, Iterator):
            value = self.collect(value)
        if isinstance(value, str):
            self.check_text(len(value))
            self.spend(sys.getsizeof(value))
        elif isinstance(value, (list, tuple, dict)):
            self.check_text(self.measure(value).num_characters)
            self.spend(STEP_BYTES + sys.getsizeof(value))
        elif isinstance(value, int):
            self.check_integer(value.bit_length())
            self.spend()
        else:
            self.spend()
        return value

    def collect(self, values: Iterable[object]) -> list[object]:
        """Return the values as a list, charging each."""
        return list(self.count(values))

    def count(self, values: Iterable[object], step_bytes: int = STEP_BYTES) -> Iterator[object]:
        """Yield the values, charging `step_bytes` for each."""
        for value in values:
            self.spend(step_bytes)
            yield value

    def show(self, value: object) -> str:
        """Return the text of a value; raise `TemplateLimitError` if it is too long or the value is no plain data."""
        if isinstance(value, (str, Undefined)):
            text = str(value)
            self.spend(len(text))
            return text
        self.check_printable(value)
        text = str(value)
        self.spend(sys.getsizeof(text))
        return text

    def check_printable(self, value: object) -> int:
        """Return at most how many characters `value` shows as; raise `TemplateLimitError` if it must not be shown."""
        extent = self.measure(value)
        if not extent.is_data:
            raise TemplateLimitError(f"the chat template prints a value that is no data: {type(value).__name__}")
        self.check_text(extent.num_characters)
        return extent.num_characters

    def measure(self, value: object) -> Extent:
        """Return the extent of a value; containers shared by several others count each time they occur."""
        if isinstance(value, str):
            return Extent(len(value) + 2, 1, 0, True)
        if value is None or isinstance(value, (bool, float, Undefined)):
            return Extent(24, 1, 0, True)
        if isinstance(value, int):
            return Extent(value.bit_length() // 3 + 2, 1, 0, True)
        if isinstance(value, (list, tuple, dict, *_VIEW_TYPES)):
            known = self._measured.get(id(value))
            if known is None:
                known = self._measured[id(value)] = (value, self._measure_container(value))
            return known[1]
        return Extent(STEP_BYTES, 1, 0, False)

    def _measure_container(self, value: Iterable[object]) -> Extent:
        parts = chain(value, value.values()) if isinstance(value, dict) else value
        num_characters, num_values, depth, is_data = 2, 1, 0, True
        for part in parts:
            self.spend(1)
            extent = self.measure(part)
            num_characters += extent.num_characters + 2
            num_values += extent.num_values
            depth = max(depth, extent.depth)
            is_data = is_data and extent.is_data
        if depth >= MAX_DEPTH:
            raise TemplateLimitError(f"the chat template nests values more than {MAX_DEPTH} deep")
        return Extent(num_characters, num_values, depth + 1, is_data)
