"""Check a grammar in llguidance's Lark syntax and prepare the JSON Schemas inside it.

Schemas after `%json` are checked and bounded exactly as a structure of kind `json_schema` is. It must not know tokens.
Entry point: `prepare_lark`.
"""

from __future__ import annotations

import json
import re

from pelton.core.errors import StructureError
from pelton.core.structure import dump_json, shorten
from pelton.structure.json_schema import prepare_schema
from pelton.structure.regex_limits import find_excess

# The compiler is recursive over rules and overflows an 8 MiB stack at some 2,500 of them (measured 2026-11-29).
MAX_NUM_RULES = 500

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|\#[^\n]*)
      | (?P<string>"(?:\\.|[^"\\\n])*")
      | (?P<regex>/(?:\\.|\[(?:\\.|[^\]\\\n])*\]|[^/\\\n])+/)
      | (?P<directive>%\w+)
      | (?P<options>\[[^\]\n]*\])
      | (?P<rule>^[ \t]*[!?]?[A-Za-z_][\w.-]*[ \t]*(?:\[[^\]\n]*\])?[ \t]*:{1,2})""",
    re.VERBOSE | re.MULTILINE,
)
# These take tokens back or steer sampling, which a mask cannot.
_UNSUPPORTED_OPTION = re.compile(r"\b(stop|max_tokens|temperature)\b")
_DECODER = json.JSONDecoder()


def prepare_lark(grammar: str, name: str) -> str:
    """Return the grammar with its schemas prepared; `name` is what errors call it.

    Raises `StructureError` for too many rules, excessive patterns, directives and options that are not supported, and
    schemas that are wrong.
    """
    pieces: list[str] = []
    start, num_rules = 0, 0
    while (token := _TOKEN.search(grammar, start)) is not None:
        pieces.append(grammar[start : token.end()])
        start = token.end()
        line = f"{name} line {grammar.count(chr(10), 0, token.start()) + 1}"
        if token["rule"]:
            num_rules += 1
        if token["rule"] or token["options"]:
            option = _UNSUPPORTED_OPTION.search(token[0].partition("[")[2])
            if option is not None:
                raise StructureError(line, f"option {option[1]}", "the options capture, lazy and suffix")
        elif token["regex"]:
            excess = find_excess(token["regex"])
            if excess is not None:
                raise StructureError(line, shorten(token["regex"]), f"a pattern without {excess}")
        elif token["directive"] == "%json":
            text, start = _prepare_inline_schema(grammar, start, line)
            pieces.append(text)
        elif token["directive"] == "%llguidance":
            options, start = _read_json(grammar, start, line)
            if options != {}:
                raise StructureError(f"{line}.%llguidance", shorten(options), "{}, no options")
            pieces.append(" {}")
    if num_rules > MAX_NUM_RULES:
        raise StructureError(name, f"{num_rules} rules", f"at most {MAX_NUM_RULES} rules")
    return "".join(pieces) + grammar[start:]


def _prepare_inline_schema(grammar: str, start: int, line: str) -> tuple[str, int]:
    schema, stop = _read_json(grammar, start, line)
    prepared = prepare_schema(schema, f"{line}.%json")
    return " " + dump_json(line, prepared.schema), stop


def _read_json(grammar: str, start: int, line: str) -> tuple[object, int]:
    while start < len(grammar) and grammar[start].isspace():
        start += 1
    try:
        return _DECODER.raw_decode(grammar, start)
    except (ValueError, RecursionError) as error:
        raise StructureError(line, shorten(grammar[start : start + 200]), f"a JSON object ({error})") from error
