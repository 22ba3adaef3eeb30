"""Structures that are wrong, not supported or hostile: a clear error with the place, soon, and the process lives."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from pelton.core.errors import InvalidParameterError, StructureError
from pelton.core.structure import MAX_STRUCTURE_BYTES, Structure
from pelton.structure.compiler import StructureCompiler
from pelton.structure.constraint import GrammarConstraint
from pelton.structure.regex_limits import find_excess


def nest(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


def chain(num_refs: int, depth: int = 0) -> dict[str, object]:
    """Definitions that refer to the next one from `depth` arrays inside."""
    definitions: dict[str, object] = {f"d{num_refs}": {"type": "integer"}}
    for index in range(num_refs):
        schema: dict[str, object] = {"$ref": f"#/$defs/d{index + 1}"}
        for _ in range(depth):
            schema = {"items": schema}
        definitions[f"d{index}"] = schema
    return {"$ref": "#/$defs/d0", "$defs": definitions}


@pytest.mark.parametrize(
    ("kind", "value", "place", "allowed"),
    [
        ("json_schema", {"properties": {"a": {"not": {}}}}, "json_schema.properties.a.not", "the keywords"),
        ("json_schema", {"propertes": {}}, "json_schema.propertes", "the keywords"),
        ("json_schema", {"x-guidance": {"lenient": True}}, "json_schema.x-guidance", "the keywords"),
        ("json_schema", {"anyOf": [True, {"uniqueItems": True}]}, r"json_schema.anyOf\[1\].uniqueItems", "the keyw"),
        ("json_schema", {"items": [{}]}, "json_schema.items", "prefixItems"),
        ("json_schema", {"$ref": "http://a/b"}, r"json_schema.\$ref", "a reference within the schema"),
        ("json_schema", {"$ref": "#/$defs/x"}, "json_schema", "does not exist"),
        ("json_schema", {"properties": {"a": {"format": "foo"}}}, "json_schema.properties.a.format", "one of date-"),
        ("json_schema", {"items": {"pattern": "(?=a)"}}, "json_schema.items.pattern", "look-around"),
        ("json_schema", {"pattern": "((a{99}){99}){99}"}, "json_schema.pattern", "nested repetitions"),
        ("json_schema", {"patternProperties": {"(": {}}}, "json_schema.patternProperties", "unclosed group"),
        ("json_schema", {"type": "strin"}, "json_schema", "Invalid type: strin"),
        ("json_schema", {"minimum": 5, "maximum": 3, "type": "integer"}, "json_schema", "greater than maximum"),
        ("json_schema", {"oneOf": [{"type": "integer"}, {"type": "number"}]}, "json_schema", "oneOf"),
        ("json_schema", {"$ref": "#"}, "json_schema", "some text satisfies"),
        ("json_schema", False, "json_schema", "at least one document"),
        ("json_schema", {"properties": 3}, "json_schema.properties", "an object of schemas"),
        ("json_schema", {"anyOf": [3]}, r"json_schema.anyOf\[0\]", "a JSON Schema"),
        ("json_schema", nest(101), "json_schema.items", "nested at most 100"),
        (
            "json_schema",
            {"const": [[[]]] if (deep := nest(150)) is None else deep},
            "json_schema.const",
            "nested at most",
        ),
        ("json_schema", chain(3000), "json_schema", "at most 1500 levels"),
        ("json_schema", chain(300, 20), "json_schema", "at most 1500 levels"),
        ("json_schema", {"properties": {str(i): {} for i in range(1001)}}, "json_schema.properties", "at most 1000"),
        ("json_schema", {"type": "integer", "multipleOf": 999983}, "json_schema.multipleOf", "multiples of 20000"),
        ("json_schema", {"items": {"multipleOf": 0}}, "json_schema.items.multipleOf", "a number above 0"),
        ("json_schema", {"multipleOf": 10**400}, "json_schema", ""),
        ("json_schema", {"type": "array", "minItems": -1}, "json_schema", ""),
        ("regex", "(a", "regex", "unclosed group"),
        ("regex", r"(a)\1", "regex", "backreferences"),
        ("regex", "(((a{1000}){1000}){1000})", "regex", "nested repetitions"),
        ("regex", "(a?){3000}a{3000}", "regex", "repeated 3000 times"),
        ("lark", "start: x", "lark", "unknown name"),
        ("lark", 'start: "a" %json {"not": {}}', "lark line 1.%json.not", "the keywords"),
        ("lark", 'x: "a"\nstart: x %json {', "lark line 2", "a JSON object"),
        ("lark", 'start: a\na[stop="x"]: /.*/', "lark line 2", "the options"),
        ("lark", '%llguidance {"no_forcing": true}\nstart: "a"', "lark line 1.%llguidance", "no options"),
        ("lark", "start: T\nT: /(a{999}){999}/", "lark line 2", "nested repetitions"),
        ("lark", "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(5000)) + '\nr5000: "x"', "lark", "rules"),
        ("lark", "start: " + "(" * 50_000 + '"x"' + ")" * 50_000, "lark", "nested"),
        ("lark", "start: start", "lark", ""),
    ],
)
def test_error_names_the_place(kit: Any, kind: str, value: object, place: str, allowed: str) -> None:
    start_s = time.perf_counter()
    with pytest.raises(StructureError, match=rf"^structure\.{place}[ .].*allowed: .*{allowed}"):
        kit.compile(kind, value)
    assert time.perf_counter() - start_s < 60  # far below what these would take without the limits


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("xml", "a"),
        ("regex", ""),
        ("regex", None),
        ("regex", "\ud800"),
        ("lark", 3),
        ("choice", []),
        ("choice", "ab"),
        ("choice", ["a", 1]),
        ("choice", ["a", ""]),
        ("choice", ["a"] * 5000),
        ("json_object", {"type": "object"}),
        ("json_schema", "{"),
        ("json_schema", '{"const": NaN}'),
        ("json_schema", {"const": float("inf")}),
        ("json_schema", {"const": object()}),
        ("json_schema", [1]),
        ("json_schema", '{"items":' * 5000 + "{}" + "}" * 5000),
        ("json_schema", {"enum": ["x" * MAX_STRUCTURE_BYTES]}),
        ("lark", 'start: "a"\n' + " " * MAX_STRUCTURE_BYTES),
    ],
)
def test_what_is_no_structure_is_refused_at_once(kind: str, value: object) -> None:
    with pytest.raises(StructureError, match=r"^structure\.") as caught:
        Structure(kind, value)
    assert isinstance(caught.value, InvalidParameterError)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("value", [nest(90), chain(490), chain(45, 20), {"enum": [str(i) for i in range(5000)]}])
def test_large_structures_within_the_limits_compile_in_a_thread(kit: Any, value: object) -> None:
    with ThreadPoolExecutor(1) as pool:  # a thread's stack may be smaller than the main one
        constraint = pool.submit(kit.compile, "json_schema", value).result()
    assert kit.allowed(constraint)


def test_largest_number_of_rules_compiles_in_a_thread(kit: Any) -> None:
    """The parser's limit may stop it, the stack may not."""
    grammar = "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}?" for i in range(498)) + '\nr498: "x"'
    with ThreadPoolExecutor(1) as pool, contextlib.suppress(StructureError):
        kit.allowed(pool.submit(kit.compile, "lark", grammar).result())
    chain_of_terminals = "start: T0\n" + "\n".join(f'T{i}: T{i + 1} "y"' for i in range(498)) + '\nT498: "x"'
    with ThreadPoolExecutor(1) as pool:
        assert kit.allowed(pool.submit(kit.compile, "lark", chain_of_terminals).result()) == [ord("x")]


@pytest.mark.parametrize(
    ("pattern", "is_excessive"),
    [
        ("[a-z]{1,2000}", False),
        ("x{0,100000}", False),
        (r"([a-z]{1,20} ){1,50}", False),
        (r"(a{100}){100}", False),
        (r"(a{101}){100}", True),
        (r"a{200}{200}", True),
        (r"(a|b{3}){1001}", True),
        (r"\({9}\{9999}[({99}]{5000}", False),
        (r"((a{3}|b){5,}c){999}", True),
        (r"(a{99999999999999999999}){2}", True),
        (r"\p{L}{3}(\u{41}){5}", False),
        (")))", False),
    ],
)
def test_product_of_nested_repetitions_is_limited(pattern: str, is_excessive: bool) -> None:
    assert (find_excess(pattern) is not None) == is_excessive


def test_token_that_is_not_allowed_is_an_error_of_its_request(kit: Any) -> None:
    constraint = kit.compile("regex", "ab")
    with pytest.raises(StructureError, match="token 5000"):
        constraint.accept(5000)
    with pytest.raises(StructureError, match="satisfy the grammar"):
        constraint.accept(ord("b"))
    with pytest.raises(StructureError):
        kit.allowed(constraint)
    assert kit.allowed(kit.compile("regex", "ab"))  # the next one is not touched


def test_mask_of_another_shape_or_type_is_refused(kit: Any) -> None:
    constraint = kit.compile("regex", "ab")
    for mask in (np.zeros(3, np.uint32), np.zeros(100, np.int64), np.zeros((2, 100), np.uint32)):
        with pytest.raises(ValueError, match="mask is"):
            constraint.fill_mask(mask)


def test_vocabulary_without_end_tokens_is_refused(kit: Any) -> None:
    class Endless:
        vocab_size = 1
        eos_token_ids: frozenset[int] = frozenset()

    with pytest.raises(StructureError, match="end token"):
        StructureCompiler(Endless()).compile(Structure("regex", "a"))  # type: ignore[arg-type]  # never read further


def test_grammars_are_compiled_once_and_the_oldest_leave(kit: Any) -> None:
    compiler = StructureCompiler(kit.tokenizer, max_cached=2)
    first = compiler.compile(Structure("regex", "a+"))
    first.accept(ord("a"))
    again = compiler.compile(Structure("regex", "a+"))
    assert kit.allowed(again) != kit.allowed(first)  # the state is not shared
    for pattern in ("b", "c", "d"):
        compiler.compile(Structure("regex", pattern))
    assert compiler.num_cached == 2


def test_known_structure_does_not_wait_for_the_compilation_of_another(kit: Any) -> None:
    structures = [Structure("regex", f"a{{{n}}}") for n in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        constraints = list(pool.map(kit.compiler.compile, structures * 4))
    assert all(kit.allowed(constraint) == [ord("a")] for constraint in constraints)


def test_equal_structures_are_one_key() -> None:
    as_text = Structure("json_schema", '{"type": "object", "title": "é"}')
    as_mapping = Structure("json_schema", {"type": "object", "title": "é"})
    assert as_text == as_mapping
    assert hash(as_text) == hash(as_mapping)
    # The order of properties is the order they are written in, so it is part of the structure.
    assert Structure("json_schema", {"properties": {"a": {}, "b": {}}}) != Structure(
        "json_schema", {"properties": {"b": {}, "a": {}}}
    )


def test_error_of_the_first_mask_shows_the_pattern_as_its_value(kit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # As with a large vocabulary, for which `a*` 3000 times is too much.
    def refuse(self: GrammarConstraint, mask: object) -> None:
        raise StructureError("structure", "lexer error: too much", "output within the limits")

    monkeypatch.setattr(GrammarConstraint, "fill_mask", refuse)
    with pytest.raises(StructureError) as caught:
        StructureCompiler(kit.tokenizer).compile(Structure("regex", "a*" * 3000))
    shown = "a*" * 38 + "a..."
    expected = f"structure.regex is '{shown}'; allowed: output within the limits (lexer error: too much)"
    assert str(caught.value) == expected
