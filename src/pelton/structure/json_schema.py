"""Check a JSON Schema before it is compiled, and say where it is wrong.

llguidance compiles Draft 2020-12 but passes over keywords it does not know, and its errors rarely say where. So every
keyword is looked at here: supported, an annotation, or refused with its place. White space between the tokens of a
document is bounded, so that a model cannot fill its limit with blanks. It must not know tokens.
Entry point: `prepare_schema`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal

from pelton.core.errors import StructureError
from pelton.core.structure import shorten
from pelton.structure.regex_limits import find_excess

# One blank, or one line break and its indentation.
WHITESPACE_PATTERN = r"( |\n[ \t]{0,16})"
MAX_DEPTH = 100  # levels of JSON; the compiler's reader stops at 128
MAX_NUM_PROPERTIES = 1_000  # of one object; its parser keeps several items for each
# Levels that following references may add up to; the compiler is recursive and overflows an 8 MiB stack at some 2,500
# references (measured 2026-11-29, llguidance 1.9.1).
MAX_REFERENCE_DEPTH = 1_500
# Of all multipleOf together, each without its powers of ten: divisibility by n is an automaton of n states (99,991 took
# 0.8 s, 999,983 took 11 s, measured 2026-11-29).
MAX_MULTIPLES = 20_000

_SCHEMA_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_SCHEMA_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SCHEMAS = frozenset({"items", "additionalProperties"})
_ASSERTIONS = frozenset(
    [
        "type",
        "const",
        "enum",
        "$ref",
        "format",
        "pattern",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "required",
        "minProperties",
        "maxProperties",
        "minItems",
        "maxItems",
    ]
)
_ANNOTATIONS = frozenset(
    [
        "title",
        "description",
        "default",
        "example",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$comment",
        "$schema",
        "$id",
        "$anchor",
        "$vocabulary",
        "contentEncoding",
        "contentMediaType",
        "discriminator",
    ]
)
SUPPORTED_KEYWORDS = _SCHEMA_MAPS | _SCHEMA_LISTS | _SCHEMAS | _ASSERTIONS
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
_OPTIONS = {"whitespace_pattern": WHITESPACE_PATTERN, "lenient": False, "coerce_one_of": False}


@dataclass(slots=True)
class _Findings:
    """What a walk over a schema collects: places of patterns, how deep each reference stands, sum of multiples."""

    patterns: list[tuple[str, str]] = field(default_factory=list)
    reference_depths: dict[str, int] = field(default_factory=dict)
    sum_of_multiples: int = 0


@dataclass(frozen=True, slots=True)
class PreparedSchema:
    """A schema llguidance may compile, and (place, pattern) of every pattern in it, to find one it refuses."""

    schema: dict[str, object]
    patterns: tuple[tuple[str, str], ...]


def prepare_schema(schema: object, name: str) -> PreparedSchema:
    """Return a checked schema with the options it is compiled with; `name` is what errors call it.

    Raises `StructureError` naming the place for keywords that are not supported, references out of the schema,
    excessive patterns, nesting and references.
    """
    if schema is False:
        raise StructureError(name, False, "a schema that at least one document satisfies")
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise StructureError(name, shorten(schema), "a JSON Schema: an object, true or false")
    findings = _Findings()
    checked = _check(schema, name, 1, findings)
    depth = sum(findings.reference_depths.values())
    if depth > MAX_REFERENCE_DEPTH:
        raise StructureError(name, f"references {depth} levels deep", f"at most {MAX_REFERENCE_DEPTH} levels in all")
    assert isinstance(checked, dict)
    return PreparedSchema({**checked, "x-guidance": _OPTIONS}, tuple(findings.patterns))


def _check(schema: object, place: str, depth: int, findings: _Findings) -> object:
    """Return a schema without the keywords that say nothing; record what it refers to."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise StructureError(place, shorten(schema), "a JSON Schema: an object, true or false")
    if depth > MAX_DEPTH:
        raise StructureError(place, "a schema", f"schemas nested at most {MAX_DEPTH} levels of JSON deep")
    checked: dict[str, object] = {}
    for keyword, value in schema.items():
        at = f"{place}.{keyword}"
        if keyword in _ANNOTATIONS or (keyword.startswith("x-") and keyword != "x-guidance"):
            if keyword in ("$id", "$anchor"):  # references may name them
                checked[keyword] = value
        elif keyword == "uniqueItems" and value is False:
            continue
        elif keyword not in SUPPORTED_KEYWORDS:
            raise StructureError(at, shorten(value), f"the keywords {', '.join(sorted(SUPPORTED_KEYWORDS))}")
        else:
            checked[keyword] = _check_value(keyword, value, at, depth, findings)
    return checked


def _check_value(keyword: str, value: object, at: str, depth: int, findings: _Findings) -> object:
    if keyword in _SCHEMA_MAPS:
        return _check_map(keyword, value, at, depth, findings)
    if keyword in _SCHEMA_LISTS:
        if not isinstance(value, list):
            raise StructureError(at, shorten(value), "a list of schemas")
        return [_check(entry, f"{at}[{index}]", depth + 2, findings) for index, entry in enumerate(value)]
    if keyword in _SCHEMAS:
        if isinstance(value, list):
            raise StructureError(at, shorten(value), "one schema; schemas by position are prefixItems")
        return _check(value, at, depth + 1, findings)
    if keyword == "$ref":
        if not isinstance(value, str) or not value.startswith("#"):
            raise StructureError(at, shorten(value), "a reference within the schema, such as #/$defs/name")
        findings.reference_depths[value] = max(depth, findings.reference_depths.get(value, 0))
    elif keyword == "format" and value not in FORMATS:
        raise StructureError(at, shorten(value), "one of " + ", ".join(FORMATS))
    elif keyword == "pattern":
        _check_pattern(value, at, findings)
    elif keyword == "multipleOf":
        _check_multiple(value, at, findings)
    elif keyword in ("const", "enum"):
        _check_depth(value, at, depth)
    return value


def _check_map(keyword: str, value: object, at: str, depth: int, findings: _Findings) -> dict[str, object]:
    if not isinstance(value, dict):
        raise StructureError(at, shorten(value), "an object of schemas")
    if keyword in ("properties", "patternProperties") and len(value) > MAX_NUM_PROPERTIES:
        raise StructureError(at, f"{len(value)} properties", f"at most {MAX_NUM_PROPERTIES} properties of one object")
    if keyword == "patternProperties":
        for pattern in value:
            _check_pattern(pattern, at, findings)
    return {key: _check(entry, f"{at}.{key}", depth + 2, findings) for key, entry in value.items()}


def _check_pattern(pattern: object, at: str, findings: _Findings) -> None:
    if not isinstance(pattern, str):
        raise StructureError(at, shorten(pattern), "a regular expression")
    excess = find_excess(pattern)
    if excess is not None:
        raise StructureError(at, shorten(pattern), f"a pattern without {excess}")
    findings.patterns.append((at, pattern))


def _check_multiple(value: object, at: str, findings: _Findings) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise StructureError(at, shorten(value), "a number above 0")
    digits = "".join(map(str, Decimal(str(value)).as_tuple().digits)).rstrip("0")
    findings.sum_of_multiples += int(digits)
    if findings.sum_of_multiples > MAX_MULTIPLES:
        raise StructureError(at, shorten(value), f"multiples of {MAX_MULTIPLES} in all, without powers of ten")


def _check_depth(value: object, at: str, depth: int) -> None:
    level = [value]
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise StructureError(at, "a value", f"values nested at most {MAX_DEPTH} levels of JSON deep")
        level = [child for entry in level for child in _get_children(entry)]


def _get_children(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value
