"""/v1/responses with the `openai` package, LangChain and raw requests: whole answers, order of events, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import httpx
import openai
import pytest
from compat_engine import CompatServer
from langchain_openai import ChatOpenAI

PATH = "/v1/responses"


def read_events(response: httpx.Response) -> list[tuple[str, dict]]:
    """(event, data) of every event of a stream."""
    events = []
    for block in response.text.strip().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.split("\n"))
        events.append((lines["event"], json.loads(lines["data"])))
    return events


@pytest.fixture
def client(hello: CompatServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=hello.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def make_langchain(client: openai.OpenAI) -> Callable[..., ChatOpenAI]:
    """LangChain over the client of the test, which is closed at its end."""

    def make(**options: object) -> ChatOpenAI:
        resource = client.responses if options.get("use_responses_api") else client.chat.completions
        return ChatOpenAI(client=resource, root_client=client, api_key="none", model="tiny", **options)

    return make


def test_a_text_is_answered(hello: CompatServer, client: openai.OpenAI) -> None:
    response = client.responses.create(model="tiny", input="hi", instructions="Be brief.", max_output_tokens=50)
    assert response.output_text == "Hello, wörld!"
    assert response.status == "completed"
    assert [item.type for item in response.output] == ["message"]
    assert response.output[0].status == "completed"
    assert response.usage.input_tokens == len("<s>[system]Be brief.[user]hi") - 2
    assert response.usage.output_tokens == len("Hello, wörld!".encode()) + 1
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert response.instructions == "Be brief."
    assert response.timings["predicted_n"] == response.usage.output_tokens
    assert hello.prompts[-1] == "[system]Be brief.[user]hi"


def test_an_answer_that_is_cut_off_is_incomplete(client: openai.OpenAI) -> None:
    response = client.responses.create(model="tiny", input="hi", max_output_tokens=3)
    assert response.output_text == "Hel"
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"


def test_events_come_in_the_order_of_the_protocol(hello: CompatServer) -> None:
    events = read_events(hello.client.post(PATH, json={"input": "hi", "stream": True}))
    kinds = [kind for kind, _ in events]
    first = ["created", "in_progress", "output_item.added", "content_part.added"]
    last = ["output_text.done", "content_part.done", "output_item.done", "completed"]
    deltas = kinds[len(first) : -len(last)]
    assert kinds[: len(first)] == [f"response.{name}" for name in first]
    assert kinds[-len(last) :] == [f"response.{name}" for name in last]
    assert set(deltas) == {"response.output_text.delta"}
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert all(kind == data["type"] for kind, data in events)
    text = "".join(data["delta"] for kind, data in events if kind.endswith(".delta"))
    assert text == "Hello, wörld!"
    assert {data["item_id"] for _, data in events if "item_id" in data} == {events[2][1]["item"]["id"]}
    assert "\ufffd" not in text


def test_stream_and_whole_answer_are_the_same(hello: CompatServer) -> None:
    whole = hello.client.post(PATH, json={"input": "hi", "seed": 7}).json()
    streamed = read_events(hello.client.post(PATH, json={"input": "hi", "seed": 7, "stream": True}))[-1][1]["response"]
    differing = {"id", "created_at", "completed_at", "timings", "output"}
    assert {k: v for k, v in whole.items() if k not in differing} == {
        k: v for k, v in streamed.items() if k not in differing
    }
    assert [item["content"] for item in whole["output"]] == [item["content"] for item in streamed["output"]]


def test_the_clients_own_stream_reader_gets_the_final_response(client: openai.OpenAI) -> None:
    with client.responses.stream(model="tiny", input="hi") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == "Hello, wörld!"


def test_a_conversation_may_hold_the_items_of_earlier_answers(hello: CompatServer, client: openai.OpenAI) -> None:
    first = client.responses.create(model="tiny", input="hi")
    items = [{"role": "user", "content": "hi"}, *[item.model_dump(exclude_unset=True) for item in first.output]]
    items += [{"role": "developer", "content": "Be brief."}]
    items += [{"role": "user", "content": [{"type": "input_text", "text": "and now?"}]}]
    client.responses.create(model="tiny", input=items)
    assert hello.prompts[-1] == "[user]hi[assistant]Hello, wörld![system]Be brief.[user]and now?"


def test_log_probabilities_come_if_they_are_included(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="tiny", input="hi", max_output_tokens=2, include=["message.output_text.logprobs"], top_logprobs=1
    )
    entries = response.output[0].content[0].logprobs
    assert [entry.token for entry in entries] == ["H", "e"]
    assert all(len(entry.top_logprobs) == 1 for entry in entries)


def test_langchain_speaks_to_it(make_langchain: Callable[..., ChatOpenAI]) -> None:
    model = make_langchain(use_responses_api=True)
    assert model.invoke("hi").text == "Hello, wörld!"
    chunks = list(model.stream("hi"))
    assert "".join(chunk.text for chunk in chunks) == "Hello, wörld!"


def test_langchain_speaks_to_chat_completions_too(make_langchain: Callable[..., ChatOpenAI]) -> None:
    model = make_langchain(stream_usage=True)
    assert model.invoke("hi").content == "Hello, wörld!"
    chunks = list(model.stream("hi"))
    assert "".join(chunk.content for chunk in chunks) == "Hello, wörld!"
    assert any(chunk.usage_metadata for chunk in chunks)


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"include": ["reasoning.encrypted_content"]}, "include[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"stop": [""]}, "stop"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": "x" * 5000}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ],
)
def test_what_is_not_supported_is_named(hello: CompatServer, fields: dict, parameter: str) -> None:
    response = hello.client.post(PATH, json={"input": "hi", **fields})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith(parameter)
    assert parameter in error["message"]


def test_an_unknown_model_is_not_found(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="nobody"):
        client.responses.create(model="nobody", input="hi")


def test_an_error_inside_a_stream_is_its_last_event(broken: CompatServer) -> None:
    events = read_events(broken.client.post(PATH, json={"input": "hi", "stream": True}))
    kind, data = events[-1]
    assert kind == "response.failed"
    assert data["response"]["status"] == "failed"
    assert data["response"]["error"]["code"] == "server_error"
    assert not any(kind == "response.completed" for kind, _ in events)
    assert broken.client.post(PATH, json={"input": "hi"}).status_code == 500
