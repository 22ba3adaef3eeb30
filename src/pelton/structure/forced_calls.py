"""Grammars that force tool calls, in the style a model is trained on, so that reading the answer cannot fail.

Works for every model: the schema of a tool's parameters bounds its arguments. Entry point: `build_call_structure`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from pelton.core.structure import Structure
from pelton.core.tools import Tool, ToolChoice
from pelton.structure.json_schema import prepare_schema
from pelton.text.tool_calls.style import ToolStyle

MAX_FORCED_CALLS = 16  # of one answer; a model that does not stop would fill its limit with calls


def build_call_structure(
    tools: Sequence[Tool], choice: ToolChoice, style: ToolStyle, find_token: Callable[[str], int | None]
) -> Structure | None:
    """Return the structure of an answer that must call tools; None if `choice` does not force any.

    `find_token` is that of the tokenizer: markers that are special tokens can be written as these only.
    Raises `StructureError` naming the tool whose schema of parameters is not supported.
    """
    if choice.mode not in ("required", "named"):
        return None
    indexes = [i for i, tool in enumerate(tools) if choice.mode == "required" or tool.name == choice.name]
    call = "(" + " | ".join(f"call_{index}" for index in indexes) + ")"
    # A named call is one call, as clients of OpenAI's API expect.
    has_many = choice.is_parallel and style.is_parallel and choice.mode == "required"
    begin, end = _write_marker(style.marker, find_token), _write_marker(style.close, find_token)
    if style.is_list:
        more = f'(", " {call}){{0,{MAX_FORCED_CALLS - 1}}}' if has_many else ""
        start = f'{begin} " [" {call} {more} "]"'
        begin = ""
    else:
        start = f'{call} ("\\n" {call}){{0,{MAX_FORCED_CALLS - 1}}}' if has_many else call
        begin = "" if style.is_bare else f'{begin} "\\n"'
    close = f'"\\n" {end}' if style.close else ""
    rules = [f"start: {start}"]
    for index in indexes:
        rules.append(f"call_{index}: {begin} {_write_call(tools[index], style, index)} {close}")
    return Structure("lark", "\n".join(rules))


def _write_marker(marker: str, find_token: Callable[[str], int | None]) -> str:
    token_id = find_token(marker) if marker else None
    return json.dumps(marker) if token_id is None else f"<[{token_id}]>"


def _write_call(tool: Tool, style: ToolStyle, index: int) -> str:
    head = json.dumps(f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "{style.arguments_key}": ')
    if not tool.parameters:
        return f'{head} "{{}}" "}}"'
    schema = json.loads(tool.parameters)
    prepare_schema(schema, f"tools[{index}].function.parameters")  # for the place in the error
    return f'{head} %json {json.dumps(schema)} "}}"'
