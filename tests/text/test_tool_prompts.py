"""Tools, calls and results on their way into a prompt: templates that know them, templates that do not."""

from __future__ import annotations

import json

import pytest

from pelton.core.errors import InvalidParameterError
from pelton.core.tools import Tool, ToolChoice, parse_tool_choice, parse_tools
from pelton.text.chat_template import ChatTemplate
from pelton.text.tool_calls.prompt import prepare_chat
from pelton.text.tool_calls.registry import detect_style

FIND = {
    "type": "function",
    "function": {"name": "find", "description": "Looks up.", "parameters": {"properties": {"q": {"type": "string"}}}},
}
TOOLS = parse_tools([FIND])
PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + PLAIN
DROPS_SYSTEM = "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
# In the manner of Qwen 2.5's template.
WITH_TOOLS = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for call in m.tool_calls %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}{% endfor %}"
)
CALL = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"q": "é"}'}}
CHAT: list[dict[str, object]] = [
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "Ada"},
    {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "Bob"}]},
]


def render(source: str, messages: list[dict[str, object]], tools: tuple[Tool, ...], **options: object) -> str:
    template = ChatTemplate(source)
    prepared = prepare_chat(template, messages, tools, **options)
    return template.render(prepared.messages, tools=prepared.tools)


def test_template_that_knows_tools_gets_them_and_arguments_as_objects() -> None:
    text = render(WITH_TOOLS, CHAT, TOOLS)
    call = '<tool_call>{"name": "find", "arguments": {"q": "é"}}</tool_call>'
    expected = {
        **FIND,
        "function": {**FIND["function"], "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
    }
    offered = text[len("<tools>") : text.index("</tools>")]
    assert json.loads(offered) == expected
    assert text.endswith(f"[user]Who?[assistant]{call}{call}[tool]Ada[tool]Bob")
    assert CHAT[1]["tool_calls"] == [CALL, CALL]  # the caller's messages are not changed


def test_other_template_gets_tools_calls_and_results_as_text() -> None:
    text = render(PLAIN, [{"role": "system", "content": "Be brief."}, *CHAT], TOOLS)
    call = '<tool_call>\n{"name": "find", "arguments": {"q": "é"}}\n</tool_call>'
    results = "<tool_response>\nAda\n</tool_response>\n<tool_response>\nBob\n</tool_response>"
    assert text.startswith("[system]Be brief.\n\nYou can call the functions")
    assert json.dumps(TOOLS[0].to_dict()) in text
    assert text.endswith(f"[user]Who?[assistant]{call}\n{call}[user]{results}")


@pytest.mark.parametrize(
    ("source", "start"), [(PLAIN, "[system]You can"), (NO_SYSTEM, "[user]You can"), (DROPS_SYSTEM, "[user]You can")]
)
def test_tools_are_offered_where_the_template_shows_them(source: str, start: str) -> None:
    text = render(source, [{"role": "user", "content": "Hi"}], TOOLS)
    assert text.startswith(start)
    assert "find" in text
    assert text.endswith("Hi")


@pytest.mark.parametrize("source", [PLAIN, WITH_TOOLS])
def test_tools_are_not_offered_when_none_may_be_called(source: str) -> None:
    text = render(source, [{"role": "user", "content": "Hi"}], TOOLS, choice=ToolChoice("none"))
    assert text == render(source, [{"role": "user", "content": "Hi"}], ()) == "[user]Hi"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{{ tools }}<tool_call>", "hermes"),
        ("{{ tools }}[TOOL_CALLS] [", "mistral"),
        ("{{ tools }}<|python_tag|>", "llama3"),
        ("{{ tools }}[TOOL_CALLS]name[ARGS]", None),
        ("{{ tools }}other", None),
        ("<tool_call>", None),
        ("{{ tools }}{% if %}<tool_call>", None),
    ],
)
def test_style_is_found_in_the_template(source: str, name: str | None) -> None:
    style = detect_style(ChatTemplate(source))
    assert (style.name if style else None) == name


@pytest.mark.parametrize(
    ("calls", "name"),
    [
        ("x", r"messages\[0\].tool_calls is"),
        ([{}], r"messages\[0\].tool_calls\[0\] is"),
        ([{"function": {"name": 3}}], r"messages\[0\].tool_calls\[0\] is"),
        ([{"function": {"name": "f", "arguments": "{"}}], r"tool_calls\[0\].function.arguments is"),
        ([{"function": {"name": "f", "arguments": "[1]"}}], r"tool_calls\[0\].function.arguments is"),
    ],
)
def test_calls_that_are_none_are_named(calls: object, name: str) -> None:
    with pytest.raises(InvalidParameterError, match=name):
        prepare_chat(ChatTemplate(PLAIN), [{"role": "assistant", "tool_calls": calls}])


@pytest.mark.parametrize(
    ("tools", "name"),
    [
        ("x", "tools is"),
        ([{}], r"tools\[0\] is"),
        ([FIND, {"type": "function", "function": {}}], r"tools\[1\].function.name is None"),
        ([{"type": "function", "function": {"name": "a\nb"}}], r"tools\[0\].function.name"),
        ([{"type": "function", "function": {"name": "f", "description": 3}}], r"tools\[0\].function.description"),
        (
            [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}],
            r"tools\[0\].function.parameters is",
        ),
        ([FIND, FIND], r"tools\[1\].function.name is 'find'; allowed: names that differ"),
        ([FIND] * 200, "number of tools is 200"),
    ],
)
def test_tools_that_are_none_are_named(tools: object, name: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"^{name}"):
        parse_tools(tools)


def test_choice_is_read() -> None:
    named = {"type": "function", "function": {"name": "find"}}
    assert parse_tool_choice(None, TOOLS) == ToolChoice("auto")
    assert parse_tool_choice(None, ()) == ToolChoice("none")
    assert parse_tool_choice("required", TOOLS, is_parallel=False) == ToolChoice("required", "", False)
    assert parse_tool_choice(named, TOOLS) == ToolChoice("named", "find")
    for wrong in ("any", 3, {"type": "function"}, {"type": "function", "function": {"name": "other"}}):
        with pytest.raises(InvalidParameterError, match=r"^tool_choice"):
            parse_tool_choice(wrong, TOOLS)
    with pytest.raises(InvalidParameterError, match="none, when there are no tools"):
        parse_tool_choice("required", ())
