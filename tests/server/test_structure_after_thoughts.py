"""A model that thinks is free to do so before a structure or a forced call holds. The model is a script."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
from live_server import LiveServer, run_live
from scripted import TEMPLATE, make_engine

from byte_model import EOS
from pelton.core.request import Request

THOUGHTS = b'no "{}" yet\n</think>'
OPEN = TEMPLATE + "{% if enable_thinking is false %}<think></think>{% else %}<think>{% endif %}\n"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "thing", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}


def choose(request: Request) -> int:
    """Think, if that is allowed, then the first allowed one of what closes a text, letters, and anything."""
    mask = np.zeros(16, np.uint32)
    assert request.constraint is not None
    request.constraint.fill_mask(mask)
    number = len(request.output_token_ids)
    ranked = [*THOUGHTS[number : number + 1], EOS, *b'"}]', *range(97, 123), *range(256)]
    token_id = next(i for i in ranked if mask[i // 32] >> (i % 32) & 1)
    request.constraint.accept(token_id)
    return token_id


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with run_live(make_engine(choose, template=OPEN, model_context=4096, num_blocks=2048)) as live:
        yield live


def ask(server: LiveServer, **fields: object) -> dict:
    """The message of an answer; a stream must have the same texts."""
    response = server.chat(max_tokens=300, **fields)
    (choice,) = response.json()["choices"]
    assert choice["finish_reason"] in ("stop", "tool_calls")
    lines = server.chat(max_tokens=300, stream=True, **fields).text.split("\n\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    for name in ("content", "reasoning"):
        assert "".join(delta.get(name) or "" for delta in deltas) == (choice["message"].get(name) or "")
    return choice["message"]


@pytest.mark.parametrize("fields", [{"response_format": FORMAT}, {"structured_outputs": {"json": SCHEMA}}])
def test_a_schema_holds_after_the_thoughts(server: LiveServer, fields: dict) -> None:
    message = ask(server, **fields)
    assert message["reasoning"] == 'no "{}" yet'
    assert set(json.loads(message["content"])) == {"name"}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "find"}}])
def test_a_call_is_forced_after_the_thoughts(server: LiveServer, choice: object) -> None:
    message = ask(server, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    assert message["reasoning"] == 'no "{}" yet'
    assert not message["content"]
    (call,) = message["tool_calls"]
    assert set(json.loads(call["function"]["arguments"])) == {"name"}


def test_a_prompt_that_has_closed_the_thoughts_leaves_no_room_for_them(server: LiveServer) -> None:
    message = ask(server, response_format=FORMAT, chat_template_kwargs={"enable_thinking": False})
    assert not message.get("reasoning")
    assert set(json.loads(message["content"])) == {"name"}


def test_a_text_without_a_template_has_no_thoughts(server: LiveServer) -> None:
    body = server.complete("x", structured_outputs={"json": SCHEMA}, max_tokens=300).json()
    assert set(json.loads(body["choices"][0]["text"])) == {"name"}
