"""The default model under masks: what it writes is valid, and a mask takes little of a token's time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from pelton.core.config import EngineConfig
from pelton.core.structure import Structure
from pelton.core.tools import ToolChoice, parse_tools
from pelton.execution.runner import ModelRunner
from pelton.loading.model import LoadedModel, load_model
from pelton.structure.compiler import StructureCompiler
from pelton.structure.forced_calls import build_call_structure
from pelton.text.tokenizer import encode_chat
from pelton.text.tool_calls.deltas import collect_message
from pelton.text.tool_calls.parser import ToolCallParser
from pelton.text.tool_calls.prompt import prepare_chat

pytestmark = pytest.mark.model

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "population": {"type": "integer", "minimum": 0, "maximum": 100_000_000},
        "sights": {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 1, "maxItems": 3},
        "capital": {"type": "boolean"},
    },
    "required": ["city", "population", "sights", "capital"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
    },
}


class Greedy:
    """The model and the most likely allowed token, one after the other."""

    def __init__(self, model: LoadedModel, runner: ModelRunner) -> None:
        self.model, self.runner = model, runner
        self.compiler = StructureCompiler(model.tokenizer)

    def generate(self, structure: Structure, prompt: list[int], max_tokens: int = 200) -> str:
        constraint = self.compiler.compile(structure)
        mask = np.empty((self.model.config.vocab_size + 31) // 32, np.uint32)
        ids, new = list(prompt), list(prompt)
        table = np.arange(16, dtype=np.int32)[None, :]
        for _ in range(max_tokens):
            cu_seqlens = np.array([0, len(new)], np.int32)
            last = np.array([len(new) - 1], np.int32)
            contexts = np.array([len(ids)], np.int32)
            (logits,) = self.runner._program.run(
                self.runner._cache, np.array(new, np.int32), cu_seqlens, contexts, table, last
            )
            constraint.fill_mask(mask)
            is_allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(logits)]
            token_id = int(np.argmax(np.where(is_allowed, logits, -np.inf)))
            constraint.accept(token_id)
            if token_id in self.model.tokenizer.eos_token_ids:
                return self.model.tokenizer.decode(ids[len(prompt) :])
            ids.append(token_id)
            new = [token_id]
        pytest.fail(f"did not end: {self.model.tokenizer.decode(ids)}")


@pytest.fixture(scope="module")
def greedy(model_path: Path) -> Iterator[Greedy]:
    config = EngineConfig(threads=1, max_context=256, max_num_seqs=1)
    model = load_model(model_path, config)
    runner = ModelRunner(model, config)
    yield Greedy(model, runner)
    runner.close()


def chat(greedy: Greedy, text: str, **options: Any) -> list[int]:  # Any: the arguments of prepare_chat
    template = greedy.model.chat_template
    assert template is not None
    prepared = prepare_chat(template, [{"role": "user", "content": text}], **options)
    return encode_chat(greedy.model.tokenizer, template.render(prepared.messages, tools=prepared.tools))


def test_model_writes_what_the_structure_asks_for(greedy: Greedy) -> None:
    prompt = chat(greedy, "Describe Paris in JSON.")
    document = json.loads(greedy.generate(Structure("json_schema", SCHEMA), prompt))
    jsonschema.validate(document, SCHEMA)
    assert "Paris" in document["city"]
    assert greedy.generate(Structure("choice", ["Yes", "No"]), chat(greedy, "Is fire hot?")) in ("Yes", "No")
    text = greedy.generate(Structure("regex", r"\d{4}-\d{2}-\d{2}"), chat(greedy, "A date, please."))
    assert len(text) == 10


def test_model_without_training_on_tools_makes_the_call_that_is_forced(greedy: Greedy) -> None:
    tools = parse_tools([WEATHER])
    prompt = chat(greedy, "What is the weather in Rome?", tools=tools)
    assert b"get_weather" in b"".join(map(greedy.model.tokenizer.token_bytes, prompt))
    assert greedy.model.chat_template is not None
    style = prepare_chat(greedy.model.chat_template, [], ()).style
    structure = build_call_structure(tools, ToolChoice("required", "", False), style, greedy.model.tokenizer.find_token)
    assert structure is not None
    parser = ToolCallParser(style, ["get_weather"])
    text = greedy.generate(structure, prompt)
    (call,) = collect_message([*parser.push(text), *parser.flush()]).tool_calls
    arguments = json.loads(call.arguments)
    jsonschema.validate(arguments, WEATHER["function"]["parameters"])  # type: ignore[index]  # a literal of this file
    assert arguments["city"] == "Rome"
