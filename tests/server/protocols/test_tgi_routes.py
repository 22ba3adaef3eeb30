"""TGI's routes with `huggingface_hub` and raw requests: texts, details, streams, errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from compat_engine import TINY_OPTIONS, CompatServer, LiveServer
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError

from pelton import LLM

NUM_TOKENS = len("Hello, wörld!".encode()) + 1


@pytest.fixture
def client(hello: CompatServer) -> Iterator[InferenceClient]:
    with InferenceClient(hello.url) as client:
        yield client


def test_a_prompt_is_continued(hello: CompatServer, client: InferenceClient) -> None:
    assert client.text_generation("hi", max_new_tokens=50) == "Hello, wörld!"
    assert hello.prompts[-1] == "hi"
    assert client.text_generation("hi", max_new_tokens=5, return_full_text=True) == "hiHello"


def test_details_hold_every_token(client: InferenceClient) -> None:
    output = client.text_generation("hi", max_new_tokens=50, details=True, top_n_tokens=2, seed=3)
    details = output.details
    assert output.generated_text == "Hello, wörld!"
    assert (details.finish_reason, details.generated_tokens) == ("eos_token", NUM_TOKENS)
    assert len(details.tokens) == len(details.top_tokens) == NUM_TOKENS
    assert [token.text for token in details.tokens[:2]] == ["H", "e"]
    assert [token.special for token in details.tokens[-2:]] == [False, True]
    assert all(len(top) == 2 for top in details.top_tokens)


def test_why_a_text_ended(client: InferenceClient) -> None:
    cut = client.text_generation("hi", max_new_tokens=3, details=True)
    assert (cut.generated_text, cut.details.finish_reason) == ("Hel", "length")
    stopped = client.text_generation("hi", max_new_tokens=50, details=True, stop=[", w"])
    assert (stopped.generated_text, stopped.details.finish_reason) == ("Hello", "stop_sequence")


def test_a_stream_has_one_event_per_token(client: InferenceClient) -> None:
    assert "".join(client.text_generation("hi", max_new_tokens=50, stream=True)) == "Hello, wörld!"
    events = list(client.text_generation("hi", max_new_tokens=50, stream=True, details=True))
    assert [event.index for event in events] == list(range(1, NUM_TOKENS + 1))
    assert all(event.details is None and event.generated_text is None for event in events[:-1])
    assert events[-1].generated_text == "Hello, wörld!"
    assert events[-1].details.finish_reason == "eos_token"
    assert (events[-1].details.input_length, events[-1].details.generated_tokens) == (3, NUM_TOKENS)
    assert events[-1].token.special


def test_the_three_paths_answer_alike(hello: CompatServer) -> None:
    body = {"inputs": "hi", "parameters": {"max_new_tokens": 5}}
    whole = hello.client.post("/generate", json=body).json()
    assert whole["generated_text"] == "Hello"
    assert whole["timings"]["predicted_n"] == 5
    listed = hello.client.post("/", json=body).json()
    assert [entry["generated_text"] for entry in listed] == ["Hello"]
    streamed = hello.client.post("/generate_stream", json=body).text.strip().split("\n\n")
    last = json.loads(streamed[-1].removeprefix("data: "))
    assert (len(streamed), last["generated_text"]) == (5, "Hello")
    assert last["timings"]["predicted_n"] == 5


@pytest.mark.parametrize(
    ("parameters", "temperature"),
    [
        ({}, 0.0),
        ({"temperature": 1.0}, 0.0),
        ({"top_p": 1.0}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"temperature": 0.5}, 0.5),
        ({"top_k": 5}, 1.0),
        ({"top_p": 0.5}, 1.0),
    ],
)
def test_decoding_is_greedy_unless_a_draw_is_asked_for(
    hello: CompatServer, parameters: dict, temperature: float
) -> None:
    hello.client.post("/generate", json={"inputs": "hi", "parameters": {"max_new_tokens": 1, **parameters}})
    assert hello.params[-1].temperature == temperature


def test_a_hundred_tokens_are_the_default(hello: CompatServer) -> None:
    hello.client.post("/generate", json={"inputs": "hi"})
    assert hello.params[-1].max_tokens == 100


def test_info_tells_model_and_limits(hello: CompatServer) -> None:
    info = hello.client.get("/info").json()
    assert info["model_id"] == "tiny"
    assert info["max_total_tokens"] == hello.engine.context_length
    assert info["max_stop_sequences"] == hello.options.max_stop_strings


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"parameters": {"truncate": 5}}, "parameters.truncate"),
        ({"parameters": {"watermark": True}}, "parameters.watermark"),
        ({"parameters": {"adapter_id": "x"}}, "parameters.adapter_id"),
        ({"parameters": {"temperature": 0}}, "parameters.temperature"),
        ({"parameters": {"max_new_tokens": 0}}, "parameters.max_new_tokens"),
        ({"parameters": {"frequency_penalty": 1000.0}}, "parameters.frequency_penalty"),
        ({"parameters": {"top_n_tokens": 10**6}}, "parameters.top_n_tokens"),
        ({"parameters": {"stop": [""]}}, "parameters.stop"),
        ({"parameters": {"best_of": 10**6}}, "best_of"),
        ({"parameters": {"decoder_input_details": True}}, "parameters.decoder_input_details"),
        ({"parameters": {"no_such": 1}}, "parameters.no_such"),
        ({"inputs": ""}, "inputs"),
        ({"inputs": None}, "inputs"),
        ({"stream": True}, "stream"),
    ],
)
def test_what_is_not_supported_is_named(hello: CompatServer, fields: dict, parameter: str) -> None:
    if fields.get("inputs") == "":
        pytest.skip("this tokenizer adds BOS, so an empty text is one token")
    response = hello.client.post("/generate", json={"inputs": "hi", **fields})
    assert response.status_code == 400
    body = response.json()
    assert (set(body), body["error_type"]) == ({"error", "error_type"}, "validation")
    assert parameter in body["error"]


def test_errors_are_the_clients_own_classes(client: InferenceClient, broken: CompatServer) -> None:
    with pytest.raises(ValidationError, match="truncate"):
        client.text_generation("hi", truncate=3)
    with pytest.raises(ValidationError, match="context"):
        client.text_generation("x" * 5000)
    response = broken.client.post("/generate_stream", json={"inputs": "hi"})
    last = json.loads(response.text.strip().split("\n\n")[-1].removeprefix("data: "))
    assert (response.status_code, last["error_type"]) == (200, "generation")
    assert "generated_text" not in last
    whole = broken.client.post("/generate", json={"inputs": "hi"})
    assert (whole.status_code, whole.json()["error_type"]) == (500, "generation")


def test_the_prompts_tokens_come_with_their_log_probabilities(tiny: LiveServer, tiny_path: Path) -> None:
    parameters = {"max_new_tokens": 2, "details": True, "decoder_input_details": True}
    prompt = "some words of a prompt"
    prefill = tiny.client.post("/generate", json={"inputs": prompt, "parameters": parameters}).json()["details"][
        "prefill"
    ]
    with LLM(tiny_path, **TINY_OPTIONS) as llm:
        ids = llm.tokenizer.encode(prompt)
        scores = llm.score(ids)
    assert [token["id"] for token in prefill] == ids
    assert prefill[0]["logprob"] is None
    assert [token["logprob"] for token in prefill[1:]] == pytest.approx(scores.tolist(), abs=1e-5)


def test_the_best_of_several_comes_with_the_others(tiny: LiveServer) -> None:
    parameters = {"max_new_tokens": 4, "details": True, "do_sample": True, "best_of": 3, "seed": 1}
    answer = tiny.client.post("/generate", json={"inputs": "x", "parameters": parameters}).json()
    details = answer["details"]
    others = details["best_of_sequences"]
    sums = [sum(token["logprob"] for token in s["tokens"]) / s["generated_tokens"] for s in (details, *others)]
    assert len(others) == 2
    assert max(sums) == pytest.approx(sums[0])
    assert sorted(s["seed"] for s in (details, *others)) == [1, 2, 3]


def test_a_grammar_holds(tiny: LiveServer) -> None:
    parameters = {"max_new_tokens": 30, "do_sample": True, "seed": 3, "grammar": {"type": "regex", "value": "[ab]{4}"}}
    answer = tiny.client.post("/generate", json={"inputs": "x", "parameters": parameters})
    assert answer.status_code == 200, answer.text
    assert re.fullmatch("[ab]{4}", answer.json()["generated_text"])
