"""The way of tools, calls and their results into a prompt.

A chat template that knows tools gets them as they are. For any other one, tools are described in the system message (or
the first user message where a template takes no system message), calls are written into the assistant's text, and
results become messages of the user; all in the style of Hermes, which many models have seen.
It must not know tokens. Entry point: `prepare_chat`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pelton.core.errors import ChatTemplateError, InvalidParameterError
from pelton.core.structure import shorten
from pelton.core.tools import Tool, ToolChoice
from pelton.text.chat_template import PART_SEPARATOR, ChatTemplate
from pelton.text.tool_calls.registry import DEFAULT_STYLE, detect_style
from pelton.text.tool_calls.style import ToolStyle

Message = Mapping[str, object]

TOOL_PROMPT = """You can call the functions listed between <tools> and </tools>, one JSON object per line:
<tools>
{tools}
</tools>
To call a function, answer with a JSON object that holds its name and its arguments, between <tool_call> and \
</tool_call>, once per call:
<tool_call>
{{"name": "function name", "arguments": {{"argument name": "value"}}}}
</tool_call>
The results come back between <tool_response> and </tool_response>."""


class PreparedChat(NamedTuple):
    """What goes to `ChatTemplate.render`, and the style the answer is read in."""

    messages: list[dict[str, object]]
    tools: list[dict[str, object]] | None
    style: ToolStyle


def prepare_chat(
    template: ChatTemplate,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    choice: ToolChoice | None = None,
) -> PreparedChat:
    """Return messages and tools as the template takes them. Tools are not offered if `choice` is `none`.

    Raises `InvalidParameterError` for `tool_calls` that are none; other faults of messages are found by `render`.
    """
    is_offered = bool(tools) and (choice is None or choice.mode != "none")
    copies = [_copy_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    style = detect_style(template)
    if style is not None:
        return PreparedChat(copies, [tool.to_dict() for tool in tools] if is_offered else None, style)
    written = _write_calls(copies)
    if is_offered:
        _add_tool_prompt(template, written, tools)
    return PreparedChat(written, None, DEFAULT_STYLE)


def _copy_message(message: Message, name: str) -> dict[str, object]:
    """Copy a message; arguments of calls become objects, which is what templates print."""
    if not isinstance(message, Mapping):
        raise InvalidParameterError(name, shorten(message), 'an object {"role": ..., "content": ...}')
    copy = dict(message)
    calls = copy.get("tool_calls")
    if calls is None:
        copy.pop("tool_calls", None)
        return copy
    if isinstance(calls, (str, Mapping)) or not isinstance(calls, Sequence):
        raise InvalidParameterError(f"{name}.tool_calls", shorten(calls), "a list of calls")
    copy["tool_calls"] = [_copy_call(call, f"{name}.tool_calls[{index}]") for index, call in enumerate(calls)]
    return copy


def _copy_call(call: object, name: str) -> dict[str, object]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidParameterError(name, shorten(call), '{"id": ..., "function": {"name": ..., "arguments": ...}}')
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments) if arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            raise InvalidParameterError(f"{name}.function.arguments", shorten(arguments), "JSON text") from error
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise InvalidParameterError(f"{name}.function.arguments", shorten(arguments), "an object, or its JSON text")
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def _write_calls(messages: list[dict[str, object]]) -> list[dict[str, object]]:
    """Write calls and results into the texts of messages, for templates that do not know them."""
    written: list[dict[str, object]] = []
    is_after_result = False
    for message in messages:
        is_result = message.get("role") == "tool"
        if is_result:
            text = f"<tool_response>\n{_get_text(message)}\n</tool_response>"
            if is_after_result:  # templates want user and assistant in turn
                written[-1]["content"] = f"{written[-1]['content']}\n{text}"
            else:
                written.append({"role": "user", "content": text})
        elif "tool_calls" in message:
            parts = [_get_text(message), *map(_write_call, _get_calls(message))]
            plain = {key: value for key, value in message.items() if key != "tool_calls"}
            written.append({**plain, "content": "\n".join(part for part in parts if part)})
        else:
            written.append(message)
        is_after_result = is_result
    return written


def _get_calls(message: dict[str, object]) -> list[dict[str, object]]:
    calls = message["tool_calls"]
    assert isinstance(calls, list)
    return calls


def _write_call(call: dict[str, object]) -> str:
    function = call["function"]
    assert isinstance(function, dict)
    body = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
    return f"{DEFAULT_STYLE.marker}\n{body}\n{DEFAULT_STYLE.close}"


def _get_text(message: dict[str, object]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return PART_SEPARATOR.join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return "" if content is None else str(content)


def _add_tool_prompt(template: ChatTemplate, messages: list[dict[str, object]], tools: Sequence[Tool]) -> None:
    lines = (json.dumps(tool.to_dict(), ensure_ascii=False) for tool in tools)
    prompt = TOOL_PROMPT.format(tools="\n".join(lines))
    has_system = bool(messages) and messages[0].get("role") == "system"
    if has_system:
        messages[0] = {**messages[0], "content": f"{_get_text(messages[0])}\n\n{prompt}"}
    elif _takes_system(template):
        messages.insert(0, {"role": "system", "content": prompt})
    else:
        index = next((i for i, message in enumerate(messages) if message.get("role") == "user"), None)
        if index is None:
            raise InvalidParameterError("messages", "none of the user", "a message of the user, to offer tools in")
        messages[index] = {**messages[index], "content": f"{prompt}\n\n{_get_text(messages[index])}"}


def _takes_system(template: ChatTemplate) -> bool:
    """Whether the template prints a system message; some refuse it, some leave it out without a word."""
    probe = "\ufdd0probe"
    try:
        return probe in template.render([{"role": "system", "content": probe}, {"role": "user", "content": "x"}])
    except ChatTemplateError:
        return False
