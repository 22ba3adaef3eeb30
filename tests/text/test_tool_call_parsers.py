"""Tool calls out of text: every style, every way to cut the text, and what is no call. Values are written by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from pelton.core.tools import ToolCall
from pelton.text.tool_calls.deltas import AssistantMessage, ContentDelta, Delta, ToolDelta, collect_message
from pelton.text.tool_calls.parser import ToolCallParser
from pelton.text.tool_calls.registry import STYLES

NAMES = ("find", "get-item.v2")
HARD = '{"q": "é\\"}{</tool", "deep": {"a": [1, {"b": "\\\\"}], "c": null}}'

# style, text, content, calls as (name, arguments)
CASES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("hermes", "Hello <b>you</b>\n", "Hello <b>you</b>\n", []),
    ("hermes", " \n", " \n", []),
    ("hermes", '<tool_call>\n{"name": "find", "arguments": {"q": 1}}\n</tool_call>', "", [("find", '{"q": 1}')]),
    (
        "hermes",
        f'Let me see.\n<tool_call>\n{{"name": "find", "arguments": {HARD}}}\n</tool_call>\n'
        f'<tool_call>{{"arguments": {{"id": 7 }}, "name": "get-item.v2"}}</tool_call>\n',
        "Let me see.\n",
        [("find", HARD), ("get-item.v2", '{"id": 7 }')],
    ),
    ("hermes", '\n\n<tool_call>{"name":"find"}</tool_call> then', " then", [("find", "{}")]),
    ("hermes", '<tool_call>{"name":"find","arguments":null}', "", [("find", "{}")]),
    ("hermes", '<tool_call>{"name":"x","arguments":"{\\"a\\": \\"\\u00e9\\"}"}</tool_c', "", [("x", '{"a": "é"}')]),
    ("hermes", '<tool_call>{"id": -1.5e3, "name":"x","arguments":{}}', "", [("x", "{}")]),
    ("hermes", '<tool_call>{"name":"x"}<tool_call>{"name":"y"}</tool_call>', "", [("x", "{}"), ("y", "{}")]),
    ("hermes", "a <tool_call", "a <tool_call", []),
    ("hermes", "<<tool_call", "<<tool_call", []),
    ("hermes", '<<tool_call>{"name":"x"}', "<", [("x", "{}")]),
    ("hermes", "<tool_call>find(q=1)</tool_call>", "<tool_call>find(q=1)</tool_call>", []),
    (
        "hermes",
        '<tool_call>{"name": "x", "arguments": {"a": 1,}}',
        '<tool_call>{"name": "x", "arguments": {"a": 1,}}',
        [],
    ),
    (
        "hermes",
        '<tool_call>{"name": "x", "arguments": {"a": 01}}',
        '<tool_call>{"name": "x", "arguments": {"a": 01}}',
        [],
    ),
    ("hermes", '<tool_call>{"name": "x", "arguments": {"a": "', '<tool_call>{"name": "x", "arguments": {"a": "', []),
    ("hermes", '<tool_call>{"name": "x", "arguments": [1]}', '<tool_call>{"name": "x", "arguments": [1]}', []),
    ("hermes", '<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
    ("hermes", '<tool_call>{"name": "x", "name": "y"}', '<tool_call>{"name": "x", "name": "y"}', []),
    ("hermes", '<tool_call>{"name": "\\ud800"}', '<tool_call>{"name": "\\ud800"}', []),
    ("hermes", '<tool_call>{"name": "x", "arguments": "no"}', '<tool_call>{"name": "x", "arguments": "no"}', []),
    ("hermes", "<tool_call>" + '{"a":' * 300, "<tool_call>" + '{"a":' * 300, []),
    (
        "hermes",
        '<tool_call>{bad}</tool_call><tool_call>{"name": "x"}</tool_call>',
        "<tool_call>{bad}</tool_call>",
        [("x", "{}")],
    ),
    (
        "hermes",
        '<tool_call>{"name": "x"}</tool_call><tool_call>{"name": "y", "arguments": {"a": b}}</tool_call>',
        '<tool_call>{"name": "y", "arguments": {"a": b}}</tool_call>',
        [("x", "{}")],
    ),
    ("mistral", '[TOOL_CALLS] [{"name": "find", "arguments": {"q": [1]}}]', "", [("find", '{"q": [1]}')]),
    (
        "mistral",
        f'[TOOL_CALLS][{{"name":"a","arguments":{HARD}}} , {{"name":"b","arguments":{{}},"id":"123456789"}}] end',
        " end",
        [("a", HARD), ("b", "{}")],
    ),
    ("mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
    ("mistral", '[TOOL_CALLS]{"name":"a"}', '[TOOL_CALLS]{"name":"a"}', []),
    ("mistral", '[TOOL_CALLS][{"name":"a"}, oops', ", oops", [("a", "{}")]),
    ("mistral", "see [1] and [TOOL", "see [1] and [TOOL", []),
    ("llama3", '{"name": "find", "parameters": {"q": "x"}}', "", [("find", '{"q": "x"}')]),
    ("llama3", '\n{"type": "function", "name": "find", "parameters": {}}', "", [("find", "{}")]),
    (
        "llama3",
        '{"name": "find", "parameters": {}}; {"name": "f2", "parameters": {"a":1}}',
        "",
        [("find", "{}"), ("f2", '{"a":1}')],
    ),
    (
        "llama3",
        '{"name": "find", "parameters": {}}\n{"name": "get-item.v2", "parameters": {}}',
        "",
        [("find", "{}"), ("get-item.v2", "{}")],
    ),
    ("llama3", '<|python_tag|>{"name": "other", "parameters": {"a": 1}}', "", [("other", '{"a": 1}')]),
    ("llama3", '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', []),
    ("llama3", '{"name": "find", "age": 36}', '{"name": "find", "age": 36}', []),
    ("llama3", 'A {"name": "find", "parameters": {}}', 'A {"name": "find", "parameters": {}}', []),
    ("llama3", '<|python_tag|>brave_search.call(query="x")', '<|python_tag|>brave_search.call(query="x")', []),
    ("llama3", "{", "{", []),
]


def cut(text: str, size: int) -> Iterator[str]:
    yield from (text[start : start + size] for start in range(0, len(text), size))


def parse(style: str, pieces: Iterator[str]) -> list[Delta]:
    parser = ToolCallParser(STYLES[style], NAMES)
    deltas = [delta for piece in pieces for delta in parser.push(piece)] + parser.flush()
    assert parser.num_calls == len(collect_message(deltas).tool_calls)
    return deltas


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 10_000])
@pytest.mark.parametrize(("style", "text", "content", "calls"), CASES)
def test_answer_is_the_same_however_it_is_cut(
    style: str, text: str, content: str, calls: list[tuple[str, str]], size: int
) -> None:
    message = collect_message(parse(style, cut(text, size)))
    assert message.content == content
    assert [(call.name, call.arguments) for call in message.tool_calls] == calls
    assert len({call.id for call in message.tool_calls}) == len(calls)
    for call in message.tool_calls:
        assert isinstance(json.loads(call.arguments), dict)


@pytest.mark.parametrize("size", [1, 2, 10_000])
@pytest.mark.parametrize(("style", "text", "content", "calls"), [case for case in CASES if case[3]])
def test_id_and_name_come_once_with_the_first_delta_of_a_call(
    style: str, text: str, content: str, calls: list[tuple[str, str]], size: int
) -> None:
    seen: set[int] = set()
    for delta in parse(style, cut(text, size)):
        if isinstance(delta, ToolDelta):
            assert (delta.id is None) == (delta.name is None) == (delta.index in seen)
            seen.add(delta.index)


def test_arguments_go_out_as_they_come() -> None:
    parser = ToolCallParser(STYLES["hermes"], NAMES)
    assert parser.push('Yes <tool_call>{"name": "find", "argu') == [ContentDelta("Yes ")]
    (first,) = parser.push('ments": {"q": "a')
    assert isinstance(first, ToolDelta)
    assert (first.index, first.name, first.arguments) == (0, "find", '{"q": "a')
    assert parser.push("b") == [ToolDelta(0, "b")]
    assert parser.push('"}') == [ToolDelta(0, '"}')]
    assert parser.push("}\n</tool_call>\n") == []
    assert parser.flush() == []


def test_call_that_fails_on_its_way_is_cancelled() -> None:
    parser = ToolCallParser(STYLES["hermes"], NAMES)
    text = '<tool_call>{"name": "find", "arguments": {"q": 1'
    (delta,) = parser.push(text)
    assert isinstance(delta, ToolDelta)
    assert parser.push(" x") == [ContentDelta(text + " x", cancelled_index=0)]
    later = '<tool_call>{"name": "a"}'
    (delta,) = parser.push(later)
    assert isinstance(delta, ToolDelta)
    assert delta.index == 1
    assert parser.flush() == []


def test_ids_have_the_form_of_the_style() -> None:
    for style, length in (("hermes", 29), ("mistral", 9)):
        ids = {STYLES[style].make_id() for _ in range(1000)}
        assert len(ids) == 1000
        assert {len(call_id) for call_id in ids} == {length}
    assert all(call_id.isalnum() for call_id in ids)


def test_no_part_of_a_marker_is_shown_before_it_is_decided() -> None:
    for style in STYLES.values():
        for end in range(1, len(style.marker)):
            parser = ToolCallParser(style, NAMES)
            assert parser.push("a" + style.marker[:end]) == [ContentDelta("a")]
            assert parser.push("!") == [ContentDelta(style.marker[:end] + "!")]


def test_message_is_made_of_its_deltas() -> None:
    deltas = [ContentDelta("a"), ToolDelta(0, "{", "i", "f"), ContentDelta("b"), ToolDelta(0, "}")]
    assert collect_message(deltas) == AssistantMessage("ab", (ToolCall("i", "f", "{}"),))
