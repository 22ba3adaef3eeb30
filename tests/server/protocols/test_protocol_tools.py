"""Tools and reasoning through the clients of the other protocols: offered, called, answered, split off."""

from __future__ import annotations

import json
from collections.abc import Iterator

import anthropic
import ollama
import openai
import pytest
from compat_engine import CompatServer
from scripted import TEMPLATE

from byte_model import END_OF_TURN

CALL = '{"name": "get_weather", "arguments": {"city": "Ulm \\"{\\""}}'
TEXT = f"<think>\nhm\n</think>\n\nOne moment.<tool_call>\n{CALL}\n</tool_call>"
ARGUMENTS = {"city": 'Ulm "{"'}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
QUESTION = [{"role": "user", "content": "weather?"}]
# A template that mentions the marker is one of a model that thinks.
THINKING = TEMPLATE + "{# </think> #}"


@pytest.fixture(scope="module")
def server() -> Iterator[CompatServer]:
    """A server whose model thinks, says something and calls a tool; slowly enough to be streamed."""
    live = CompatServer((*TEXT.encode(), END_OF_TURN), template=THINKING, model_context=4096)
    live.engine.runner.step_s = 0.0005
    live.start()
    try:
        yield live
    finally:
        live.stop()


def test_the_responses_api(server: CompatServer) -> None:
    tool = {"type": "function", "name": "get_weather", "description": "Weather", "parameters": SCHEMA, "strict": True}
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        whole = client.responses.create(model="tiny", input=QUESTION, tools=[tool])
        with client.responses.stream(model="tiny", input=QUESTION, tools=[tool]) as stream:
            events = list(stream)
            final = stream.get_final_response()
        assert "get_weather" in server.prompts[-1]
        for response in (whole, final):
            reasoning, message, call = response.output
            assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "hm")
            assert response.output_text == message.content[0].text == "One moment."
            assert (call.name, json.loads(call.arguments)) == ("get_weather", ARGUMENTS)
            assert response.status == "completed"
            assert response.tools[0].name == "get_weather"
        deltas = [event for event in events if event.type == "response.function_call_arguments.delta"]
        assert json.loads("".join(event.delta for event in deltas)) == ARGUMENTS
        items = [item.model_dump(exclude_unset=True) for item in whole.output]
        output = {"type": "function_call_output", "call_id": whole.output[2].call_id, "output": "sunny"}
        client.responses.create(model="tiny", input=[*QUESTION, *items, output], tools=[tool])
    assert "sunny" in server.prompts[-1]


def test_the_messages_api(server: CompatServer) -> None:
    tool = {"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}
    asked = {"model": "tiny", "max_tokens": 1000, "messages": QUESTION, "tools": [tool]}
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            final = stream.get_final_message()
        for message in (whole, final):
            thinking, text, call = message.content
            assert (thinking.thinking, text.text) == ("hm", "One moment.")
            assert (call.name, call.input) == ("get_weather", ARGUMENTS)
            assert message.stop_reason == "tool_use"
        result = {"type": "tool_result", "tool_use_id": whole.content[2].id, "content": "sunny"}
        turns = [*QUESTION, whole.to_param(), {"role": "user", "content": [result]}]
        counted = client.messages.count_tokens(model="tiny", messages=turns, tools=[tool])
        answer = client.messages.create(**{**asked, "messages": turns})
    assert "sunny" in server.prompts[-1]
    assert counted.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens


def test_ollama(server: CompatServer) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}}
    with ollama.Client(host=server.url) as client:
        whole = client.chat("tiny", messages=QUESTION, tools=[tool])
        parts = list(client.chat("tiny", messages=QUESTION, tools=[tool], stream=True))
        streamed = [call for part in parts for call in part.message.tool_calls or ()]
        assert (whole.message.content, whole.message.thinking) == ("One moment.", "hm")
        assert "".join(part.message.content or "" for part in parts) == "One moment."
        for calls in (whole.message.tool_calls, streamed):
            assert [(call.function.name, call.function.arguments) for call in calls] == [("get_weather", ARGUMENTS)]
        result = {"role": "tool", "tool_name": "get_weather", "content": "sunny"}
        client.chat("tiny", messages=[*QUESTION, whole.message, result], tools=[tool])
    assert "sunny" in server.prompts[-1]


def test_tokenize_offers_tools_as_a_chat_does(server: CompatServer) -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
    body = {"messages": QUESTION, "tools": [tool]}
    count = server.client.post("/tokenize", json=body).json()["count"]
    answer = server.client.post("/v1/chat/completions", json={**body, "max_tokens": 1}).json()
    assert count == answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "fields", "parameter"),
    [
        ("/v1/responses", {"input": "x", "tool_choice": "required"}, "tool_choice"),
        ("/v1/responses", {"input": "x", "tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ("/v1/messages", {"max_tokens": 5, "messages": QUESTION, "tool_choice": {"type": "any"}}, "tool_choice"),
        (
            "/v1/messages",
            {"max_tokens": 5, "messages": QUESTION, "output_config": {"format": {"type": "json_schema", "schema": 5}}},
            "output_config.format.schema",
        ),
        (
            "/v1/messages",
            {
                "max_tokens": 5,
                "messages": QUESTION,
                "output_config": {"format": {"type": "json_schema", "schema": {"type": 5}}},
            },
            "output_config.format",
        ),
        ("/api/chat", {"messages": QUESTION, "format": {"type": 5}}, "format"),
        ("/api/generate", {"prompt": "x", "raw": True, "format": {"type": 5}}, "format"),
    ],
)
def test_what_cannot_be_is_named(server: CompatServer, path: str, fields: dict, parameter: str) -> None:
    response = server.client.post(path, json={"model": "tiny", **fields})
    assert response.status_code == 400, response.text
    assert parameter in response.text


def test_a_grammar_of_tgi_that_is_none_is_named(server: CompatServer) -> None:
    body = {"inputs": "x", "parameters": {"grammar": {"type": "regex", "value": "("}}}
    response = server.client.post("/generate", json=body)
    assert response.status_code == 400
    assert "parameters.grammar" in response.json()["error"]
