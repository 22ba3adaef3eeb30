"""Structures through both engines, with the default model: every choice obeys, wrong ones are refused early."""

from __future__ import annotations

import asyncio
import json
import os

import pytest

from pelton import LLM, AsyncEngine, SamplingParams
from pelton.core.errors import StructureError
from pelton.core.structure import Structure

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.model
def test_every_choice_obeys_and_both_engines_agree() -> None:
    model = os.environ["PELTON_TEST_MODEL"]
    params = SamplingParams(max_tokens=60, seed=1, n=3, structure=Structure("json_schema", SCHEMA))
    with LLM(model, max_context=512) as llm:
        (result,) = llm.generate(["A person:"], params)
        with pytest.raises(StructureError, match="structure"):
            llm.generate(["x"], SamplingParams(structure=Structure("regex", "(")))
        assert llm.generate(["x"], SamplingParams(max_tokens=1))[0].usage.completion_tokens == 1

    async def ask() -> None:
        async with AsyncEngine(model, max_context=512) as engine:
            found = await engine.generate("A person:", params).get_result()
            assert found.choices == result.choices
            with pytest.raises(StructureError, match="structure"):
                await engine.generate("x", SamplingParams(structure=Structure("regex", "("))).start()

    asyncio.run(ask())
    for choice in result.choices:
        assert choice.finish_reason == "stop"
        person = json.loads(choice.text)
        assert set(person) == {"name", "age"}
        assert 0 <= person["age"] <= 150
