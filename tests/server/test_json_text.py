"""Strict JSON: what is taken, and what is refused with a reason."""

from __future__ import annotations

import pytest

from pelton.core.errors import MalformedRequestError
from pelton.server.bodies import format_location
from pelton.server.json_text import dump_json, parse_json


def test_plain_json_is_taken() -> None:
    assert parse_json(b'\xef\xbb\xbf{"a": [1, 2.5, null, true, "\\ud83e\\udd80"]}') == {"a": [1, 2.5, None, True, "🦀"]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"\xff\xfe{}",
        b'{"a": "\\ud800"}',
        b'{"\\udfff": 1}',
        b'{"a": 1} 2',
        b'{"a": 1, "b": 2, "a": 1}',
        b'[{"a": {"b": 1, "b": 2}}]',
        b"[" + b"[]," * 200_000 + b"[]]",
    ],
)
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedRequestError, match="the body"):
        parse_json(data)


def test_answers_are_ascii_and_never_hold_nan() -> None:
    assert dump_json({"a": "é🦀\n"}) == b'{"a":"\\u00e9\\ud83e\\udd80\\n"}'
    with pytest.raises(ValueError):
        dump_json({"a": float("nan")})


def test_a_field_is_named_as_one_writes_it() -> None:
    assert format_location(("messages", 0, "content", "list[TextPart]", 2, "TextPart", "text"), {}) == (
        "messages[0].content[2].text"
    )
    assert format_location((), {}) == "body"


@pytest.mark.parametrize(
    ("name", "shown"),
    [("Max_tokens", "Max_tokens"), ("str", "str"), ("list[int]", "list[int]"), ("", "''"), ("a\nb", r"'a\nb'")],
)
def test_a_field_is_named_even_if_it_looks_like_a_type(name: str, shown: str) -> None:
    assert format_location((name,), {name: 1}) == shown
    assert format_location(("messages", 0, name), {"messages": [{name: 1}]}) == f"messages[0].{shown}"
