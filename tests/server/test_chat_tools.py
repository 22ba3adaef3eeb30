"""Tools, reasoning and structured output through /v1/chat/completions: what is offered, forced, found and streamed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from live_server import LiveServer
from scripted import TEMPLATE, echo, make_engine, say

from pelton.core.request import Request

WEATHER = {
    "type": "function",
    "function": {
        "name": "get-weather.v2",
        "description": "Weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
ANSWER = (
    'Let me see.<tool_call>\n{"name": "get-weather.v2", "arguments": {"city": "Sao \\"é\\" {</tool"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
)


def read_stream(server: LiveServer, **fields: object) -> list[dict[str, Any]]:
    response = server.chat(stream=True, **fields)
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.split("\n\n") if line.startswith("data: {")]
    return [json.loads(line[6:])["choices"][0] for line in lines]


def join_calls(choices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of a stream, put together as clients do."""
    calls: dict[int, dict[str, Any]] = {}
    for choice in choices:
        for delta in choice["delta"].get("tool_calls", ()):
            call = calls.setdefault(delta["index"], {"arguments": ""})
            for name in ("id", "type"):
                if name in delta:
                    assert name not in call, "sent once"
                    call[name] = delta[name]
            if "name" in delta["function"]:
                call["name"] = delta["function"]["name"]
            call["arguments"] += delta["function"]["arguments"]
    return [calls[index] for index in sorted(calls)]


def test_calls_are_found_whole_and_in_a_stream_alike(serve) -> None:
    server = serve(make_engine(say(ANSWER), model_context=4096, num_blocks=2048))
    choice = server.chat(tools=[WEATHER, TIME], max_tokens=400).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    calls = choice["message"]["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["get-weather.v2", "get_time"]
    assert json.loads(calls[0]["function"]["arguments"]) == {"city": 'Sao "é" {</tool'}
    assert json.loads(calls[1]["function"]["arguments"]) == {}
    assert len({call["id"] for call in calls}) == 2
    assert {call["type"] for call in calls} == {"function"}

    server.engine.runner.step_s = 0.0005
    choices = read_stream(server, tools=[WEATHER, TIME], max_tokens=400)
    streamed = join_calls(choices)
    assert [call["name"] for call in streamed] == ["get-weather.v2", "get_time"]
    assert [call["arguments"] for call in streamed] == [call["function"]["arguments"] for call in calls]
    assert all(call["id"] and call["type"] == "function" for call in streamed)
    content = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert content == "Let me see."
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_without_parallel_calls_there_is_one(serve) -> None:
    server = serve(make_engine(say(ANSWER), model_context=4096, num_blocks=2048))
    message = server.chat(tools=[WEATHER, TIME], max_tokens=400, parallel_tool_calls=False).json()["choices"][0][
        "message"
    ]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["get-weather.v2"]


def test_what_looks_like_a_call_and_is_none_is_content(serve) -> None:
    text = '<tool_call>{"name": 5}</tool_call>'
    server = serve(make_engine(say(text), model_context=4096, num_blocks=2048))
    choice = server.chat(tools=[WEATHER], max_tokens=100).json()["choices"][0]
    assert choice["message"]["content"] == text
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"


def test_tools_are_offered_in_the_prompt_unless_the_choice_is_none(serve) -> None:
    server = serve(make_engine(echo, model_context=8192, num_blocks=4096))
    offered = server.chat(tools=[WEATHER], max_tokens=2000).json()["choices"][0]["message"]
    # The echoed prompt shows the tool and an example of a call, which is not one of a tool there is.
    assert "get-weather.v2" in str(offered)
    plain = server.chat(tools=[WEATHER], tool_choice="none", max_tokens=2000).json()["choices"][0]["message"]
    assert plain["content"] == "[user]hi"


def test_calls_and_results_of_earlier_turns_reach_the_prompt(serve) -> None:
    server = serve(make_engine(echo, model_context=8192, num_blocks=4096))
    call = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": '{"zone": "UTC"}'}}
    messages = [
        {"role": "user", "content": "time?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
    ]
    response = server.client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1000})
    content = response.json()["choices"][0]["message"]["content"]
    assert "get_time" in content
    assert '"zone": "UTC"' in content
    assert "<tool_response>\n12:00" in content


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "x", "parameters": {"type": "array"}}}]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 5}}}},
            "response_format",
        ),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs"),
    ],
)
def test_what_is_wrong_is_named(echo_server: LiveServer, fields: dict[str, object], name: str) -> None:
    for stream in (False, True):
        response = echo_server.chat(stream=stream, **fields)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"].split("[")[0].split(".")[0] == name, response.text


@pytest.mark.parametrize(
    ("structure", "name"),
    [({"grammar": "none"}, "grammar"), ({"json": {"$ref": "#/no"}}, "json"), ({"regex": "("}, "regex")],
)
def test_a_structure_is_called_what_the_request_calls_it(echo_server: LiveServer, structure: dict, name: str) -> None:
    error = echo_server.chat(structured_outputs=structure).json()["error"]
    assert error["param"].split(".")[:2] == ["structured_outputs", name]


THINKING = TEMPLATE + "{# </think> #}"


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_split_off_under_both_names(serve, stream: bool) -> None:
    server = serve(make_engine(say("<think>\nfirst this\n</think>\n\nthe answer"), template=THINKING))
    for include in (None, False):
        fields = {"max_tokens": 100, "include_reasoning": include}
        if stream:
            server.engine.runner.step_s = 0.0005
            deltas = [choice["delta"] for choice in read_stream(server, **fields)]
            message = {
                name: "".join(delta.get(name) or "" for delta in deltas)
                for name in ("content", "reasoning", "reasoning_content")
            }
        else:
            message = server.chat(**fields).json()["choices"][0]["message"]
        assert message["content"] == "the answer"
        expected = "" if include is False else "first this"
        assert message.get("reasoning", "") == expected
        assert message.get("reasoning_content", "") == expected


def test_reasoning_that_the_prompt_has_opened_is_split_off(serve) -> None:
    template = TEMPLATE + "{% if add_generation_prompt %}<think>\n{% endif %}{# </think> #}"
    server = serve(make_engine(say("thought</think>answer"), template=template))
    message = server.chat(max_tokens=100).json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("thought", "answer")


def choose_by(ranked: Callable[[Request], list[int]]) -> Callable[[Request], int]:
    """A model with a constraint: the best token of `ranked` that the request's mask allows."""
    import numpy as np

    def choose(request: Request) -> int:
        best = ranked(request)
        if request.constraint is None:
            return best[0]
        mask = np.zeros(16, np.uint32)
        request.constraint.fill_mask(mask)
        token_id = next(i for i in best if mask[i // 32] >> (i % 32) & 1)
        request.constraint.accept(token_id)
        return token_id

    return choose


def rank_letters(request: Request) -> list[int]:
    """Quotes and braces that close first, then letters, then everything."""
    return [257, *b'"}]', *range(97, 123), *range(256)]


@pytest.fixture(scope="module")
def structured_server():
    from live_server import run_live

    with run_live(make_engine(choose_by(rank_letters), model_context=4096, num_blocks=2048)) as server:
        yield server


def test_a_schema_holds_whatever_the_model_wants(structured_server: LiveServer) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"enum": ["red"]}}},
        "required": ["name", "tags"],
        "additionalProperties": False,
    }
    response_format = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema, "strict": True}}
    body = structured_server.chat(response_format=response_format, max_tokens=200).json()
    value = json.loads(body["choices"][0]["message"]["content"])
    assert set(value) == {"name", "tags"}
    assert body["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("structure", "check"),
    [
        ({"choice": ["blue", "green"]}, lambda text: text in ("blue", "green")),
        ({"regex": "[0-9]{3}x"}, lambda text: len(text) == 4 and text[:3].isdigit()),
        ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
        ({"json": {"type": "integer"}}, lambda text: isinstance(json.loads(text), int)),
        ({"grammar": 'start: "a" "b"'}, lambda text: text == "ab"),
    ],
)
def test_every_kind_of_structure_holds(structured_server: LiveServer, structure: dict, check) -> None:
    for response in (
        structured_server.chat(structured_outputs=structure, max_tokens=200).json()["choices"][0]["message"]["content"],
        structured_server.complete(structured_outputs=structure, max_tokens=200).json()["choices"][0]["text"],
    ):
        assert check(response), response


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get-weather.v2"}}])
def test_a_forced_call_is_made(structured_server: LiveServer, choice: object) -> None:
    body = structured_server.chat(tools=[WEATHER], tool_choice=choice, max_tokens=400).json()
    (call, *_) = body["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "get-weather.v2"
    assert set(json.loads(call["function"]["arguments"])) == {"city"}
