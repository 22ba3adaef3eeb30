"""What each kind of structure allows: hand-written texts, cases of public bug reports, and random logits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema
import numpy as np
import pytest

NODE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "integer"}, "c": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["v"],
            "additionalProperties": False,
        }
    },
}
ARRAY_POSITION = {
    "type": "object",
    "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}, "b": {"$ref": "#/properties/a/anyOf/1"}},
    "required": ["b"],
}
ESCAPED = {
    "type": "object",
    "properties": {
        name: {"$ref": ref} for name, ref in (("x", "#/$defs/a~1b"), ("y", "#/$defs/p%25q"), ("z", "#/$defs/a~1b"))
    },
    "required": ["x", "y", "z"],
    "$defs": {"a/b": {"type": "integer"}, "p%q": {"type": "boolean"}},
}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b\n", "é"]}, "maxItems": 3},
        "address": {
            "anyOf": [
                {"type": "null"},
                {
                    "type": "object",
                    "properties": {"zip": {"type": "string", "pattern": r"^\d{5}$"}},
                    "required": ["zip"],
                    "additionalProperties": False,
                },
            ]
        },
        "ratio": {"type": "number", "minimum": 0, "maximum": 1},
    },
    "required": ["name", "age", "address"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (NODE, ['{"v":1,"c":[{"v":2,"c":[]}]}', '{"v": -3}'], ['{"c":[]}', '{"v":1.5}', '{"v":1,"d":2}']),
        (ARRAY_POSITION, ['{"b":3}', '{"a":"x","b":3}'], ['{"b":"x"}', '{"a":1.5,"b":3}']),
        (ESCAPED, ['{"x":1,"y":true,"z":2}'], ['{"x":true,"y":true,"z":2}', '{"x":1,"y":1,"z":2}']),
        ({"const": {"a": [1, "x"]}}, ['{"a":[1,"x"]}'], ['{"a":[1,"y"]}']),
        ({"type": "number", "multipleOf": 0.25}, ["0.75", "2"], ["0.3"]),
        ({"type": "integer", "multipleOf": 1_000_000}, ["2000000"], ["2000001"]),
        (True, ["1", '"x"', "[{}]"], ["x", ""]),
        ({"type": "array", "uniqueItems": False, "x-note": 1, "title": "t"}, ["[1, 1]"], ["{}"]),
    ],
)
def test_schema_accepts_what_it_describes(
    kit: Any, schema: object, good: list[str], bad: list[str]
) -> None:  # Any: Kit
    for text in good:
        assert kit.accepts(kit.compile("json_schema", schema), text), text
    for text in bad:
        assert not kit.accepts(kit.compile("json_schema", schema), text), text


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^\d{2}-\w+$", ["12-ab"], ["1-ab", "12-", "x12-ab"]),
        (r"^a\/b$", ["a/b"], ["ab"]),
        (r"^\S+$", ["ab"], ["a b", ""]),
        (r"[\w-]", ["a", "!-!"], ["!", ""]),
        ("b", ["abc", "b"], ["a", ""]),
    ],
)
def test_pattern_of_a_schema_is_ecma_and_not_anchored(kit: Any, pattern: str, good: list[str], bad: list[str]) -> None:
    schema = {"type": "string", "pattern": pattern}
    assert [kit.accepts(kit.compile("json_schema", schema), json.dumps(text)) for text in good] == [True] * len(good)
    assert [kit.accepts(kit.compile("json_schema", schema), json.dumps(text)) for text in bad] == [False] * len(bad)


@pytest.mark.parametrize(
    ("kind", "value", "good", "bad"),
    [
        ("regex", r"\d{2,3}(ab|c)?", ["12", "123ab", "99c"], ["1", "1234", "12abc", ""]),
        ("regex", r"^a/b\/c$", ["a/b/c"], ["a", "a/b/cd"]),
        ("regex", "a\nb", ["a\nb"], ["ab"]),
        ("choice", ["ab", "abc", 'é"\\', "🦀"], ["ab", "abc", 'é"\\', "🦀"], ["a", "abcd", "", "é"]),
        ("lark", 'start: "<" NUM ">"\nNUM: /[0-9]+/', ["<1>", "<12>"], ["<>", "1", "<1>>"]),
        ("lark", 'start: "x=" %json {"type": "integer"} | "y"', ["x=12", "y"], ["x=", "x=a"]),
        ("json_object", "", ["{}", '{"a": [1, {"b": null}]}', '{\n\t"a" : 1\n}'], ["[]", "1", "{", " {}", "{\n\n}"]),
    ],
)
def test_kind_accepts_what_it_describes(kit: Any, kind: str, value: object, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert kit.accepts(kit.compile(kind, value), text), text
    for text in bad:
        assert not kit.accepts(kit.compile(kind, value), text), text


def test_sentencepiece_vocabulary_writes_the_same_texts(sentencepiece_kit: Any) -> None:
    kit = sentencepiece_kit
    person = '{"name": "ab é", "age": 7, "address": null}'
    assert kit.accepts(kit.compile("json_schema", PERSON), person)
    assert kit.accepts(kit.compile("choice", ["ab c", "abc"]), "ab c")
    assert not kit.accepts(kit.compile("json_object"), " {}")
    first = {kit.tokenizer.token_bytes(i) for i in kit.allowed(kit.compile("json_object"))}
    assert first == {b"{"}


def make_random_choice(seed: int, tokens: Callable[[int], bytes]) -> Callable[[Sequence[int]], int]:
    """A model with random logits that would rather close than go on, more so with every token, so that it ends."""
    rng = np.random.default_rng(seed)
    num_tokens = 0

    def choose(allowed: Sequence[int]) -> int:
        nonlocal num_tokens
        num_tokens += 1
        logits = rng.gumbel(size=len(allowed))
        closes = np.array([tokens(i)[-1:] in (b"", b'"', b"}", b"]") for i in allowed])
        return int(allowed[int(np.argmax(logits + closes * num_tokens * 0.3))])

    return choose


@pytest.mark.parametrize("first_seed", range(0, 200, 50))
def test_random_logits_give_valid_documents(kit: Any, sentencepiece_kit: Any, first_seed: int) -> None:
    validator = jsonschema.Draft202012Validator(PERSON)
    for seed in range(first_seed, first_seed + 50):
        for used in (kit, sentencepiece_kit) if seed % 5 == 0 else (kit,):
            choose = make_random_choice(seed, used.tokenizer.token_bytes)
            ids = used.generate(used.compile("json_schema", PERSON), choose)
            assert ids is not None
            validator.validate(json.loads(used.tokenizer.decode(ids)))


def test_random_logits_give_json_objects_matches_and_choices(kit: Any) -> None:
    pattern = r"(ab|[a-z]{2,5})-\d{1,4}( é)?"
    choices = ["ab", "abc", "a b c", "🦀"]
    for seed in range(200):
        choose = make_random_choice(seed, kit.tokenizer.token_bytes)
        ids = kit.generate(kit.compile("json_object"), choose, 2000)
        assert ids is not None
        assert isinstance(json.loads(kit.tokenizer.decode(ids)), dict)
        text = kit.tokenizer.decode(kit.generate(kit.compile("regex", pattern), choose))
        assert re.fullmatch(pattern, text), text
        assert kit.tokenizer.decode(kit.generate(kit.compile("choice", choices), choose)) in choices


@pytest.mark.parametrize(("kind", "value"), [("json_object", ""), ("json_schema", {"type": "object"})])
def test_model_that_only_wants_blanks_still_ends(kit: Any, kind: str, value: object) -> None:
    """The best token is always a line break, then a space, an end token, the closing brace."""
    ends = sorted(kit.tokenizer.eos_token_ids)
    spaces = [kit.find_id("ĊĊ"), ord("\n"), kit.find_id("ĠĠ"), ord(" ")]
    ranked = [*spaces, *ends, ord("}")]

    def choose(allowed: Sequence[int]) -> int:
        return next((i for i in ranked if i in allowed), allowed[0])

    constraint = kit.compile(kind, value)
    assert ends[0] not in kit.allowed(constraint)
    ids = kit.generate(constraint, choose, 200)
    assert ids is not None
    text = kit.tokenizer.decode(ids)
    assert json.loads(text) == {}
    assert len(text) <= 2 + 17  # one line break and at most 16 blanks


def test_only_end_tokens_follow_a_complete_text(kit: Any) -> None:
    constraint = kit.compile("regex", "ab?")
    constraint.accept(ord("a"))
    assert not constraint.is_complete
    assert set(kit.allowed(constraint)) == {ord("b"), *kit.tokenizer.eos_token_ids}
    constraint.accept(ord("b"))
    for _ in range(2):  # an end token may be accepted again and again
        assert constraint.is_complete
        assert set(kit.allowed(constraint)) == kit.tokenizer.eos_token_ids
        constraint.accept(max(kit.tokenizer.eos_token_ids))


def test_end_token_ends_a_text_that_could_go_on(kit: Any) -> None:
    constraint = kit.compile("regex", "a+")
    constraint.accept(ord("a"))
    constraint.accept(min(kit.tokenizer.eos_token_ids))
    assert constraint.is_complete
    assert set(kit.allowed(constraint)) == kit.tokenizer.eos_token_ids


def test_special_tokens_are_no_text(kit: Any) -> None:
    """Neither control tokens nor added markers can stand inside a string; their spelling can."""
    special = {i for i in range(kit.tokenizer.vocab_size) if kit.tokenizer._vocabulary.kinds[i] != 1}
    constraint = kit.compile("json_schema", {"type": "string"})
    constraint.accept(ord('"'))
    assert special.isdisjoint(kit.allowed(constraint))
    assert kit.accepts(kit.compile("json_schema", {"type": "string"}), '"<|python_tag|></tool_call>"')
    anything = set(kit.allowed(kit.compile("regex", "(?s:.*)")))
    assert anything & special == kit.tokenizer.eos_token_ids


def test_grammar_may_name_a_special_token(kit: Any) -> None:
    tag = kit.find_id("<|python_tag|>")
    constraint = kit.compile("lark", f'start: <[{tag}]> "a"')
    assert kit.allowed(constraint) == [tag]
    constraint.accept(tag)
    assert kit.allowed(constraint) == [ord("a")]


def test_bytes_that_are_no_utf8_are_never_allowed(kit: Any) -> None:
    allowed = set(kit.allowed(kit.compile("regex", "(?s:.*)")))
    assert allowed.isdisjoint({0x80, 0xBF, 0xC0, 0xC1, 0xF5, 0xFE, 0xFF})
    assert {0x00, 0x7F, 0xC3, 0xF0} <= allowed
