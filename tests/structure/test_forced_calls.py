"""Forced tool calls: whatever a model prefers, the answer is read as calls that fit the schemas. And the gate."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest

from pelton.core.errors import StructureError
from pelton.core.structure import Structure
from pelton.core.tools import Tool, ToolChoice, parse_tools
from pelton.structure.forced_calls import MAX_FORCED_CALLS, build_call_structure
from pelton.structure.reasoning_gate import ReasoningGate
from pelton.text.reasoning import THINK, ReasoningStart
from pelton.text.tool_calls.deltas import collect_message
from pelton.text.tool_calls.parser import ToolCallParser
from pelton.text.tool_calls.registry import STYLES

TOOLS = parse_tools(
    [
        {"type": "function", "function": {"name": name, "parameters": parameters}}
        for name, parameters in (
            (
                "get-item.v2",
                {
                    "properties": {"id": {"$ref": "#/$defs/id"}},
                    "required": ["id"],
                    "additionalProperties": False,
                    "$defs": {"id": {"type": "integer", "minimum": 1, "maximum": 999}},
                },
            ),
            (
                'say "é"',
                {
                    "properties": {"text": {"type": "string", "maxLength": 8}},
                    "required": ["text"],
                    "additionalProperties": False,
                },
            ),
            ("now", None),
        )
    ]
)


def parse(style: str, text: str) -> Any:  # Any: AssistantMessage, read by its fields
    parser = ToolCallParser(STYLES[style], [tool.name for tool in TOOLS])
    return collect_message([*parser.push(text), *parser.flush()])


@pytest.mark.parametrize("style", sorted(STYLES))
@pytest.mark.parametrize(
    "choice", [ToolChoice("required"), ToolChoice("required", "", False), ToolChoice("named", "now")]
)
def test_random_logits_make_calls_that_fit(kit: Any, style: str, choice: ToolChoice) -> None:
    structure = build_call_structure(TOOLS, choice, STYLES[style], kit.tokenizer.find_token)
    names: set[str] = set()
    for seed in range(30):
        rng = np.random.default_rng(seed)
        ids = kit.generate(kit.compiler.compile(structure), lambda allowed, rng=rng: int(rng.choice(allowed)), 3000)
        assert ids is not None
        message = parse(style, kit.tokenizer.decode(ids))
        assert message.content == ""
        is_single = choice.mode == "named" or not choice.is_parallel or style == "llama3"
        assert 1 <= len(message.tool_calls) <= (1 if is_single else MAX_FORCED_CALLS)
        for call in message.tool_calls:
            tool = next(tool for tool in TOOLS if tool.name == call.name)
            schema = json.loads(tool.parameters) if tool.parameters else {"maxProperties": 0}
            jsonschema.Draft202012Validator(schema).validate(json.loads(call.arguments))
            names.add(call.name)
    assert names == ({"now"} if choice.mode == "named" else {tool.name for tool in TOOLS})


def test_marker_that_is_a_special_token_is_written_as_that_token(kit: Any) -> None:
    hermes = build_call_structure(TOOLS, ToolChoice("required"), STYLES["hermes"], kit.tokenizer.find_token)
    assert kit.allowed(kit.compiler.compile(hermes)) == [kit.find_id("<tool_call>")]
    mistral = build_call_structure(TOOLS, ToolChoice("required"), STYLES["mistral"], kit.tokenizer.find_token)
    assert kit.allowed(kit.compiler.compile(mistral)) == [ord("[")]  # this vocabulary has no such token


@pytest.mark.parametrize("mode", ["none", "auto"])
def test_nothing_is_forced_unless_asked_for(kit: Any, mode: Any) -> None:
    assert build_call_structure(TOOLS, ToolChoice(mode), STYLES["hermes"], kit.tokenizer.find_token) is None


def test_schema_that_is_not_supported_names_its_tool(kit: Any) -> None:
    tools = (*TOOLS, Tool("bad", "", '{"type": "object", "properties": {"a": {"not": {}}}}'))
    with pytest.raises(StructureError, match=r"^tools\[3\]\.function\.parameters\.properties\.a\.not is"):
        build_call_structure(tools, ToolChoice("required"), STYLES["hermes"], kit.tokenizer.find_token)


def test_gate_lets_thoughts_pass_and_then_holds_to_the_structure(kit: Any) -> None:
    gate = ReasoningGate(kit.compiler.compile(Structure("regex", "ab")), kit.tokenizer, ReasoningStart(THINK, True))
    ends = kit.tokenizer.eos_token_ids
    thoughts = kit.tokenizer.encode("So ab.\n</think", parse_special=False)
    for token_id in thoughts:
        allowed = set(kit.allowed(gate))
        assert len(allowed) == kit.tokenizer.vocab_size - len(ends)
        assert ends.isdisjoint(allowed)
        gate.accept(token_id)
    gate.accept(ord(">"))
    assert kit.allowed(gate) == kit.allowed(kit.compiler.compile(Structure("regex", "ab")))
    assert not gate.is_complete
    for token_id in b"ab":
        gate.accept(token_id)
    assert gate.is_complete
    assert set(kit.allowed(gate)) == ends


def test_gate_leaves_it_to_the_model_whether_to_think(make_kit: Any) -> None:
    from pelton.text.gguf_vocab import build_gguf_tokenizer
    from pelton.text.tokenizer import BYTE_ALPHABET

    texts = [*sorted(BYTE_ALPHABET, key=BYTE_ALPHABET.__getitem__), "ab", "</s>", "<think>", "</think>"]
    kinds = np.array([1] * 257 + [3, 3, 3], np.int32)
    names = {"model": "gpt2", "tokens": texts, "token_type": kinds, "merges": ["a b"], "eos_token_id": 257}
    kit = make_kit(build_gguf_tokenizer({f"tokenizer.ggml.{name}": value for name, value in names.items()}))
    structure = Structure("choice", ["x"])
    gate = ReasoningGate(kit.compiler.compile(structure), kit.tokenizer, ReasoningStart(THINK, False))
    assert set(kit.allowed(gate)) == {ord("x"), 258}
    gate.accept(258)
    gate.accept(259)
    assert kit.allowed(gate) == [ord("x")]
    gate = ReasoningGate(kit.compiler.compile(structure), kit.tokenizer, ReasoningStart(THINK, False))
    gate.accept(ord("x"))
    assert gate.is_complete
    assert kit.allowed(gate) == [257]
