"""Ollama's routes with the `ollama` package and raw requests: chats, prompts, options, model facts, errors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import ollama
import pytest
from compat_engine import CompatServer, LiveServer

HI = [{"role": "user", "content": "hi"}]
NUM_TOKENS = len("Hello, wörld!".encode()) + 1


@pytest.fixture
def client(hello: CompatServer) -> Iterator[ollama.Client]:
    with ollama.Client(host=hello.url) as client:
        yield client


def test_a_chat_is_answered(hello: CompatServer, client: ollama.Client) -> None:
    answer = client.chat("tiny", messages=HI, stream=False, keep_alive="5m")
    assert answer.message.content == "Hello, wörld!"
    assert (answer.done, answer.done_reason) == (True, "stop")
    assert answer.eval_count == NUM_TOKENS
    assert answer.prompt_eval_count == len("[user]hi") + 1
    assert answer.total_duration > 0
    assert hello.prompts[-1] == "[user]hi"


def test_a_chat_streams_lines(client: ollama.Client) -> None:
    parts = list(client.chat("tiny", messages=HI, stream=True))
    assert "".join(part.message.content for part in parts) == "Hello, wörld!"
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].done_reason == "stop"
    assert parts[-1].eval_count == NUM_TOKENS
    assert all(part.created_at and part.model == "tiny" for part in parts)


def test_streaming_is_the_default_and_lines_are_json(hello: CompatServer) -> None:
    response = hello.client.post("/api/chat", json={"model": "tiny", "messages": HI})
    assert response.headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert lines[-1]["timings"]["predicted_n"] == NUM_TOKENS
    assert all("message" in line for line in lines)


def test_a_prompt_goes_through_the_template_unless_it_is_raw(hello: CompatServer, client: ollama.Client) -> None:
    assert client.generate("tiny", "hi", system="Be brief.").response == "Hello, wörld!"
    assert hello.prompts[-1] == "[system]Be brief.[user]hi"
    parts = list(client.generate("tiny:latest", "hi", raw=True, stream=True))
    assert "".join(part.response for part in parts) == "Hello, wörld!"
    assert hello.prompts[-1] == "hi"


def test_options_become_sampling_parameters(hello: CompatServer, client: ollama.Client) -> None:
    options = {
        "num_predict": 5, "temperature": 0.5, "top_k": 7, "top_p": 0.75, "min_p": 0.25, "repeat_penalty": 1.25,
        "presence_penalty": 0.5, "frequency_penalty": 0.25, "seed": 11, "stop": ["zz"], "num_ctx": 64,
        "repeat_last_n": -1,
    }  # fmt: skip
    answer = client.chat("tiny", messages=HI, options=options)
    assert (answer.message.content, answer.done_reason) == ("Hello", "length")
    params = hello.params[-1]
    got = (params.max_tokens, params.temperature, params.top_k, params.top_p, params.min_p, params.repetition_penalty)
    assert got == (5, 0.5, 7, 0.75, 0.25, 1.25)
    assert (params.presence_penalty, params.frequency_penalty, params.seed, params.stop) == (0.5, 0.25, 11, ("zz",))
    client.generate("tiny", "hi", options={"num_predict": -1, "seed": -1, "repeat_penalty": 2.0, "repeat_last_n": 0})
    params = hello.params[-1]
    assert (params.max_tokens, params.seed, params.repetition_penalty) == (None, None, 1.0)


def test_an_empty_request_says_that_the_model_is_loaded(hello: CompatServer, client: ollama.Client) -> None:
    before = len(hello.prompts)
    assert client.generate("tiny", "", keep_alive=-1).done_reason == "load"
    assert client.chat("tiny", messages=[]).done_reason == "load"
    assert len(hello.prompts) == before


def test_log_probabilities(client: ollama.Client) -> None:
    answer = client.chat("tiny", messages=HI, options={"num_predict": 2}, logprobs=True, top_logprobs=1)
    assert [entry.token for entry in answer.logprobs] == ["H", "e"]
    assert all(len(entry.top_logprobs) == 1 for entry in answer.logprobs)


def test_model_facts(hello: CompatServer, client: ollama.Client) -> None:
    assert [model.model for model in client.list().models] == ["tiny", "alias"]
    shown = client.show("tiny")
    info = shown.modelinfo
    assert info["general.architecture"] == shown.details.family
    assert info[f"{shown.details.family}.context_length"] == hello.engine.context_length
    assert "completion" in shown.capabilities
    assert "{% for m in messages %}" in shown.template
    assert hello.client.get("/api/version").json()["version"]


def test_size_and_time_are_those_of_the_file(tiny: LiveServer, tiny_path: Path) -> None:
    with ollama.Client(host=tiny.url) as client:
        model = client.list().models[0]
    assert model.size == tiny_path.stat().st_size
    assert model.modified_at.timestamp() == pytest.approx(tiny_path.stat().st_mtime, abs=1e-3)


@pytest.mark.parametrize(
    ("path", "fields", "parameter"),
    [
        ("/api/chat", {"options": {"num_gpu": 1}}, "options.num_gpu"),
        ("/api/chat", {"options": {"tfs_z": 0.5}}, "options.tfs_z"),
        ("/api/chat", {"options": {"num_ctx": 10**6}}, "options.num_ctx"),
        ("/api/chat", {"options": {"num_predict": 0}}, "options.num_predict"),
        ("/api/chat", {"options": {"temperature": -1.0}}, "options.temperature"),
        ("/api/chat", {"options": {"repeat_last_n": 64}}, "options.repeat_last_n"),
        ("/api/chat", {"options": {"mirostat": 1}}, "options.mirostat"),
        ("/api/chat", {"keep_alive": "soon"}, "keep_alive"),
        ("/api/chat", {"format": "xml"}, "format"),
        ("/api/chat", {"top_logprobs": 2}, "top_logprobs"),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].images"),
        ("/api/chat", {"no_such_field": 1}, "no_such_field"),
        ("/api/chat", {"messages": [{"role": "user", "content": "x" * 5000}]}, "tokens of messages"),
        ("/api/generate", {"prompt": "x" * 5000}, "tokens of prompt"),
        ("/api/generate", {"prompt": "x" * 5000, "raw": True}, "tokens of prompt"),
        ("/api/generate", {"suffix": "x"}, "suffix"),
        ("/api/generate", {"template": "x"}, "template"),
        ("/api/generate", {"context": [1, 2]}, "context"),
        ("/api/generate", {"images": ["aGk="]}, "images"),
        ("/api/generate", {"raw": True, "system": "x"}, "system"),
        ("/api/generate", {"raw": True, "think": True}, "think"),
        ("/api/generate", {"raw": True, "options": {"top_p": 2.0}}, "options.top_p"),
        ("/api/show", {"model": None}, "model"),
    ],
)
def test_what_is_not_supported_is_named(hello: CompatServer, path: str, fields: dict, parameter: str) -> None:
    body = {"/api/chat": {"messages": HI}, "/api/generate": {"prompt": "hi"}, "/api/show": {}}[path]
    response = hello.client.post(path, json={"model": "tiny", **body, **fields})
    assert response.status_code == 400
    assert set(response.json()) == {"error"}
    assert parameter in response.json()["error"]


def test_an_unknown_model_is_not_found(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="nobody") as caught:
        client.chat("nobody", messages=HI)
    assert caught.value.status_code == 404


def test_an_error_inside_a_stream_is_its_last_line(broken: CompatServer) -> None:
    with ollama.Client(host=broken.url) as client:
        parts = client.chat("tiny", messages=HI, stream=True)
        assert next(parts).message.content
        with pytest.raises(ollama.ResponseError):
            list(parts)
        with pytest.raises(ollama.ResponseError) as caught:
            client.generate("tiny", "hi")
    assert caught.value.status_code == 500
