"""`Structure`: what a request's output must look like: a JSON Schema, any JSON object, a pattern, a choice, a grammar.

Plain data that can be compared and hashed; `structure/compiler.py` makes a `TokenConstraint` of it. It must not know
tokens. docs/structured_output.md says what is supported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NoReturn, cast, get_args

from pelton.core.errors import StructureError

StructureKind = Literal["json_schema", "json_object", "regex", "choice", "lark"]
KINDS: tuple[str, ...] = get_args(StructureKind)
MAX_STRUCTURE_BYTES = 128 << 10
MAX_NUM_CHOICES = 4096
_MAX_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Structure:
    """What an output must look like. Immutable; checked on construction as far as that needs no compiling.

    `value` may be given as

    * `json_schema`: a mapping, a boolean or JSON text; kept as JSON text, in the order of the keys,
    * `json_object`: nothing,
    * `regex` and `lark`: text; a regex matches the whole output,
    * `choice`: texts, of which the output is one; kept as a tuple.

    Raises `StructureError` for another kind or type, invalid JSON or Unicode, and for more than `MAX_STRUCTURE_BYTES`
    bytes of UTF-8.
    """

    kind: StructureKind
    value: str | bool | Sequence[str] | Mapping[str, object] = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise StructureError("structure.kind", self.kind, "one of " + ", ".join(KINDS))
        name = f"structure.{self.kind}"
        if self.kind == "json_schema":
            object.__setattr__(self, "value", _read_schema(name, self.value))
        elif self.kind == "choice":
            object.__setattr__(self, "value", _read_choices(name, self.value))
        elif self.kind == "json_object":
            if self.value:
                raise StructureError(name, shorten(self.value), "no value; a schema is of kind json_schema")
        else:
            _check_text(name, self.value)

    @property
    def text(self) -> str:
        """The value of every kind but `choice`."""
        return cast(str, self.value)

    @property
    def choices(self) -> tuple[str, ...]:
        """The value of the kind `choice`."""
        return cast("tuple[str, ...]", self.value)

    @property
    def num_bytes(self) -> int:
        """Size of the value as UTF-8: of a schema as it is kept, of all choices together."""
        texts = self.choices if self.kind == "choice" else (self.text,)
        return sum(len(text.encode()) for text in texts)


def shorten(value: object) -> object:
    """Return a value as an error may show it: as it is, or the beginning of a long text."""
    shown = value if isinstance(value, str) else repr(value)
    return value if len(shown) <= _MAX_SHOWN else f"{shown[: _MAX_SHOWN - 3]}..."


def parse_json(name: str, text: str) -> object:
    """Return the value of JSON text; raise `StructureError` for anything else, NaN and infinities included."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON")

    try:
        value: object = json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise StructureError(name, shorten(text), "JSON that is not nested so deep") from None
    except ValueError as error:
        raise StructureError(name, shorten(text), f"JSON text ({error})") from error
    return value


def dump_json(name: str, value: object) -> str:
    """Return `value` as JSON text in the order of its keys; raise `StructureError` if it has no JSON form."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise StructureError(name, shorten(type(value).__name__), f"a value with a JSON form ({error})") from error


def _read_schema(name: str, value: object) -> str:
    if isinstance(value, str):
        _check_text(name, value)
        value = parse_json(name, value)
    if isinstance(value, Mapping):
        value = dict(value)
    if not isinstance(value, (dict, bool)):
        raise StructureError(name, shorten(value), "a JSON Schema: an object, true or false")
    text = dump_json(name, value)
    _check_text(name, text)
    return text


def _read_choices(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence) or not value:
        raise StructureError(name, shorten(value), "a list of at least one text")
    if len(value) > MAX_NUM_CHOICES:
        raise StructureError(name, f"{len(value)} texts", f"at most {MAX_NUM_CHOICES} texts")
    for index, choice in enumerate(value):
        _check_text(f"{name}[{index}]", choice)
    _check_size(name, sum(len(choice.encode()) for choice in value))
    return tuple(dict.fromkeys(value))


def _check_text(name: str, text: object) -> None:
    if not isinstance(text, str) or not text:
        raise StructureError(name, shorten(text), "a text that is not empty")
    try:
        _check_size(name, len(text.encode()))
    except UnicodeEncodeError as error:
        raise StructureError(
            name, f"a lone surrogate at character {error.start}", "text that can be written as UTF-8"
        ) from error


def _check_size(name: str, num_bytes: int) -> None:
    if num_bytes > MAX_STRUCTURE_BYTES:
        raise StructureError(name, f"{num_bytes} bytes", f"at most {MAX_STRUCTURE_BYTES} bytes")
