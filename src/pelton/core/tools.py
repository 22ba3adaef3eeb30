"""Tools a model may call and the calls it makes: frozen data, and the checked reading of a caller's JSON.

The JSON is that of OpenAI's chat API: `tools`, `tool_choice`. It must not know how a model writes a call.
Entry points: `parse_tools`, `parse_tool_choice`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pelton.core.errors import InvalidParameterError
from pelton.core.structure import dump_json, shorten

MAX_NUM_TOOLS = 128
MAX_NAME_CHARACTERS = 128

ToolMode = Literal["none", "auto", "required", "named"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function a model may call; `parameters` is the JSON text of a schema of an object, "" for no parameters."""

    name: str
    description: str = ""
    parameters: str = ""

    def to_dict(self) -> dict[str, object]:
        """Return the tool as chat templates and clients write it."""
        function: dict[str, object] = {"name": self.name, "description": self.description}
        function["parameters"] = (
            json.loads(self.parameters) if self.parameters else {"type": "object", "properties": {}}
        )
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call made by a model: `arguments` is the JSON text of an object, as the model wrote it; `id` is unique."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether a model may, must not or must call tools; `name` is the one it must call in mode `named`.

    `is_parallel`: whether one answer may hold several calls.
    """

    mode: ToolMode = "auto"
    name: str = ""
    is_parallel: bool = True


def parse_tools(tools: object) -> tuple[Tool, ...]:
    """Return the tools of a list of {"type": "function", "function": {"name", "description", "parameters"}}.

    None and an empty list are no tools. Raises `InvalidParameterError` naming the entry.
    """
    if tools is None:
        return ()
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise InvalidParameterError("tools", shorten(tools), 'a list of {"type": "function", "function": {...}}')
    if len(tools) > MAX_NUM_TOOLS:
        raise InvalidParameterError("number of tools", len(tools), f"at most {MAX_NUM_TOOLS}")
    parsed = tuple(_parse_tool(entry, f"tools[{index}]") for index, entry in enumerate(tools))
    names = [tool.name for tool in parsed]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidParameterError(f"tools[{index}].function.name", name, "names that differ")
    return parsed


def parse_tool_choice(choice: object, tools: Sequence[Tool], *, is_parallel: bool = True) -> ToolChoice:
    """Return what `tool_choice` asks for: None, a mode, or {"type": "function", "function": {"name": ...}}.

    None is `auto` with tools and `none` without. Raises `InvalidParameterError` for anything else, for a function that
    is not among `tools`, and for `required` without tools.
    """
    if not isinstance(is_parallel, bool):
        raise InvalidParameterError("parallel_tool_calls", shorten(is_parallel), "true or false")
    if choice is None:
        return ToolChoice("auto" if tools else "none", is_parallel=is_parallel)
    allowed = 'none, auto, required, or {"type": "function", "function": {"name": ...}}'
    names = [tool.name for tool in tools]
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        if choice.get("type") != "function" or not isinstance(name, str):
            raise InvalidParameterError("tool_choice", shorten(choice), allowed)
        if name not in names:
            raise InvalidParameterError("tool_choice.function.name", name, "one of the tools: " + ", ".join(names))
        return ToolChoice("named", name, is_parallel)
    if choice == "none":
        return ToolChoice("none", is_parallel=is_parallel)
    if choice == "auto" or choice == "required":
        if not names:
            raise InvalidParameterError("tool_choice", choice, "none, when there are no tools")
        return ToolChoice("auto" if choice == "auto" else "required", is_parallel=is_parallel)
    raise InvalidParameterError("tool_choice", shorten(choice), allowed)


def _parse_tool(entry: object, name: str) -> Tool:
    function = entry.get("function") if isinstance(entry, Mapping) and entry.get("type") == "function" else None
    if not isinstance(function, Mapping):
        raise InvalidParameterError(name, shorten(entry), '{"type": "function", "function": {"name": ...}}')
    function_name = function.get("name")
    if not isinstance(function_name, str) or not 0 < len(function_name) <= MAX_NAME_CHARACTERS:
        raise InvalidParameterError(
            f"{name}.function.name", shorten(function_name), f"a text of 1 to {MAX_NAME_CHARACTERS} characters"
        )
    if not function_name.isprintable():
        raise InvalidParameterError(f"{name}.function.name", function_name, "printable characters")
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise InvalidParameterError(f"{name}.function.description", shorten(description), "a text")
    parameters = function.get("parameters")
    at = f"{name}.function.parameters"
    if parameters is None:
        return Tool(function_name, description or "")
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise InvalidParameterError(at, shorten(parameters), "a JSON Schema of an object")
    return Tool(function_name, description or "", dump_json(at, {"type": "object", **parameters}))
