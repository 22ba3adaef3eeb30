"""/v1/messages with the `anthropic` package and raw requests: messages, events, token counts, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator

import anthropic
import pytest
from compat_engine import CompatServer

PATH = "/v1/messages"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def client(hello: CompatServer) -> Iterator[anthropic.Anthropic]:
    with connect(hello) as client:
        yield client


def connect(server: CompatServer, key: str = "none") -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=key, max_retries=0)


def post(server: CompatServer, **fields: object):
    return server.client.post(PATH, json={"model": "tiny", "max_tokens": 50, "messages": HI, **fields})


def test_a_conversation_is_answered(hello: CompatServer, client: anthropic.Anthropic) -> None:
    message = client.messages.create(model="tiny", max_tokens=50, system="Be brief.", messages=HI)
    assert message.role == "assistant"
    assert [(block.type, block.text) for block in message.content] == [("text", "Hello, wörld!")]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens == len("Hello, wörld!".encode()) + 1
    total = message.usage.input_tokens + message.usage.cache_read_input_tokens
    assert total == len("[system]Be brief.[user]hi") + 1
    assert hello.prompts[-1] == "[system]Be brief.[user]hi"


def test_token_limit_and_stop_sequence_are_told_apart(client: anthropic.Anthropic) -> None:
    cut = client.messages.create(model="tiny", max_tokens=3, messages=HI)
    assert (cut.content[0].text, cut.stop_reason) == ("Hel", "max_tokens")
    stopped = client.messages.create(model="tiny", max_tokens=50, stop_sequences=[", w"], messages=HI)
    assert (stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence) == ("Hello", "stop_sequence", ", w")


def test_events_come_in_the_order_of_the_protocol(hello: CompatServer) -> None:
    blocks = post(hello, stream=True).text.strip().split("\n\n")
    events = [
        (b.split("\n")[0].removeprefix("event: "), json.loads(b.split("\n")[1].removeprefix("data: "))) for b in blocks
    ]
    kinds = [kind for kind, _ in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert all(kind == data["type"] for kind, data in events)
    start = events[0][1]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert start["usage"]["input_tokens"] == len("[user]hi") + 1
    assert "".join(data["delta"]["text"] for kind, data in events if kind == "content_block_delta") == "Hello, wörld!"
    assert events[-2][1]["delta"]["stop_reason"] == "end_turn"
    assert events[-2][1]["timings"]["predicted_n"] == events[-2][1]["usage"]["output_tokens"]


def test_the_clients_stream_reader_gets_the_same_message(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(model="tiny", max_tokens=50, messages=HI)
    with client.messages.stream(model="tiny", max_tokens=50, messages=HI) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_blocks_become_messages_of_the_template(hello: CompatServer, client: anthropic.Anthropic) -> None:
    cached = {"type": "ephemeral"}
    client.messages.create(
        model="tiny",
        max_tokens=5,
        system=[{"type": "text", "text": "Be", "cache_control": cached}, {"type": "text", "text": " brief."}],
        tools=[{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}, "cache_control": cached}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "2+"}]},
            {"role": "user", "content": "3?"},
            {"role": "assistant", "content": [
                {"type": "text", "text": "calling"},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 2, "b": 3}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "5"}]},
                {"type": "text", "text": "go on"},
            ]},
        ],
    )  # fmt: skip
    prompt = hello.prompts[-1]
    for piece in ("[user]2+\n3?", "[assistant]calling", "<tool_response>\n5", "[user]go on"):
        assert piece in prompt, prompt
    assert prompt.index("<tool_response>\n5") < prompt.index("[user]go on")


def test_tokens_are_counted_without_generating(hello: CompatServer, client: anthropic.Anthropic) -> None:
    before = len(hello.prompts)
    count = client.messages.count_tokens(model="tiny", messages=HI, system="Be brief.")
    assert count.input_tokens == len("[system]Be brief.[user]hi") + 1
    assert len(hello.prompts) == before


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
        ({"messages": [*HI, {"role": "assistant", "content": "He"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}]},
         "messages[0].content[0].type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"temperature": -1}, "temperature"),
        ({"top_k": -5}, "top_k"),
        ({"container": "x"}, "container"),
        ({"no_such_field": 1}, "no_such_field"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_named(hello: CompatServer, fields: dict, parameter: str) -> None:
    response = post(hello, **fields)
    assert response.status_code == 400
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert parameter in body["error"]["message"]


def test_errors_are_the_clients_own_classes(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="nobody"):
        client.messages.create(model="nobody", max_tokens=5, messages=HI)
    with pytest.raises(anthropic.BadRequestError, match="context"):
        client.messages.create(model="tiny", max_tokens=5, messages=[{"role": "user", "content": "x" * 5000}])


def test_the_key_is_taken_from_the_clients_own_header(guarded: CompatServer) -> None:
    with connect(guarded, "wrong-key") as stranger, pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(model="tiny", max_tokens=5, messages=HI)
    with connect(guarded, guarded.key) as friend:
        assert friend.messages.create(model="tiny", max_tokens=5, messages=HI).content[0].text == "Hello"


def test_an_error_inside_a_stream_is_an_error_event(broken: CompatServer) -> None:
    asked = {"model": "tiny", "max_tokens": 50, "messages": HI}
    with connect(broken) as client, client.messages.stream(**asked) as stream, pytest.raises(anthropic.APIStatusError):
        list(stream.text_stream)
    response = post(broken, stream=True)
    assert response.status_code == 200
    assert response.text.strip().split("\n\n")[-1].startswith("event: error\n")
    assert "message_stop" not in response.text
    whole = post(broken)
    assert (whole.status_code, whole.json()["error"]["type"]) == (500, "api_error")
