"""/v1/completions: prompts of all kinds, echo, log-probabilities, streams over several prompts."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from live_server import LiveServer
from scripted import echo, make_engine, say

from byte_model import BOS, EOS, ByteTokenizer


def read_events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def test_an_answer_has_openais_fields_and_timings(echo_server: LiveServer) -> None:
    body = echo_server.complete("abc").json()
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    (choice,) = body["choices"]
    assert choice["text"] == "abc"
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    assert body["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 4,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert body["timings"]["predicted_n"] == 4


def test_sixteen_tokens_are_the_default_and_null_means_no_limit(serve) -> None:
    server = serve(make_engine(say("x", end=None), model_context=64))
    assert server.complete("ab").json()["usage"]["completion_tokens"] == 16
    body = server.complete("ab", max_tokens=None).json()
    assert body["usage"]["total_tokens"] == 64
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("max_tokens", [0, -1, -5, 2**63])
def test_other_limits_are_refused_by_name(echo_server: LiveServer, max_tokens: int) -> None:
    response = echo_server.complete(max_tokens=max_tokens)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "max_tokens"


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("abc", ["abc"]),
        (["abc", "de"], ["abc", "de"]),
        ([97, 98], ["ab"]),
        ([[97, 98], [99]], ["ab", "c"]),
    ],
)
def test_prompts_are_texts_or_token_ids_one_or_many(echo_server: LiveServer, prompt: object, texts: list[str]) -> None:
    body = echo_server.complete(prompt, n=2, seed=1).json()
    assert [choice["text"] for choice in body["choices"]] == [text for text in texts for _ in range(2)]
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * len(texts)))


def test_token_ids_are_taken_as_they_are_and_texts_get_one_bos(echo_server: LiveServer) -> None:
    for prompt, ids in (([97], [97]), ("a", [BOS, 97]), ("<s>a", [BOS, BOS, 97])):
        choice = echo_server.complete(prompt, return_token_ids=True).json()["choices"][0]
        assert choice["prompt_token_ids"] == ids


def test_a_stream_reports_the_token_ids_of_each_prompt_with_its_first_chunk(echo_server: LiveServer) -> None:
    events = read_events(echo_server.complete(["ab", "c"], return_token_ids=True, stream=True))
    choices = [choice for event in events for choice in event["choices"]]
    prompts = [(choice["index"], choice["prompt_token_ids"]) for choice in choices if "prompt_token_ids" in choice]
    assert sorted(prompts) == [(0, [BOS, 97, 98]), (1, [BOS, 99])]
    for index, ids in ((0, [97, 98, EOS]), (1, [99, EOS])):
        assert [i for choice in choices if choice["index"] == index for i in choice["token_ids"]] == ids


def test_a_stream_over_several_prompts_keeps_indices_apart(echo_server: LiveServer) -> None:
    events = read_events(
        echo_server.complete(["abc", "de"], n=2, seed=8, stream=True, stream_options={"include_usage": True})
    )
    *chunks, last = events
    seeds = {c["index"]: c["seed"] for e in chunks for c in e["choices"] if c["finish_reason"]}
    assert seeds == {0: 8, 1: 9, 2: 8, 3: 9}
    texts = dict.fromkeys(range(4), "")
    reasons: dict[int, list[str]] = {index: [] for index in range(4)}
    for event in chunks:
        (choice,) = event["choices"]
        assert event["usage"] is None
        texts[choice["index"]] += choice["text"]
        reasons[choice["index"]] += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert texts == {0: "abc", 1: "abc", 2: "de", 3: "de"}
    assert all(reason == ["stop"] for reason in reasons.values())
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 4 + 3
    assert last["usage"]["completion_tokens"] == 2 * (4 + 3)
    assert last["timings"]["predicted_n"] == 14


def test_without_usage_the_last_chunk_has_the_timings(echo_server: LiveServer) -> None:
    events = read_events(echo_server.complete(["abc", "de"], stream=True))
    assert ["timings" in event for event in events] == [False] * (len(events) - 1) + [True]


def test_echo_puts_the_prompt_in_front(echo_server: LiveServer) -> None:
    assert echo_server.complete("abc", echo=True).json()["choices"][0]["text"] == "abcabc"
    assert echo_server.complete([97, 98], echo=True).json()["choices"][0]["text"] == "abab"
    events = read_events(echo_server.complete("abc", echo=True, stream=True))
    assert "".join(choice["text"] for event in events for choice in event["choices"]) == "abcabc"


def test_zero_logprobs_are_those_of_the_chosen_tokens(serve) -> None:
    server = serve(make_engine(say("é!", end=None)))
    logprobs = server.complete("ab", logprobs=0, max_tokens=3).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["bytes:\\xc3", "bytes:\\xa9", "!"],
        "token_logprobs": [-0.5] * 3,
        "top_logprobs": [{}, {}, {}],
        "text_offset": [0, 0, 1],
    }


def test_streamed_offsets_count_from_the_start_of_the_text(serve) -> None:
    server = serve(make_engine(say("xyz", end=None)))
    events = read_events(server.complete("ab", logprobs=1, max_tokens=4, stream=True))
    choices = [choice for event in events for choice in event["choices"] if choice["logprobs"]]
    assert [o for choice in choices for o in choice["logprobs"]["text_offset"]] == [0, 1, 2, 3]
    assert [t for choice in choices for t in choice["logprobs"]["tokens"]] == ["x", "y", "z", "x"]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1, 259]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["a"] * 257}, "prompt"),
        ({"prompt": "x" * 600}, None),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 129}, "logprobs"),
        ({"messages": []}, "messages"),
        ({"n": 0}, "n"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"stream": True, "echo": True, "logprobs": 1}, "logprobs"),
    ],
)
def test_what_is_wrong_is_named(echo_server: LiveServer, fields: dict[str, object], name: str | None) -> None:
    response = echo_server.client.post("/v1/completions", json={"prompt": "x", **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    if name is not None:
        assert error["param"].split("[")[0].split(".")[0] == name, error


def test_of_several_prompts_the_wrong_one_is_named(echo_server: LiveServer) -> None:
    response = echo_server.complete([[97], [98, 32000]])
    assert response.json()["error"]["param"].startswith("prompt[1]")


def test_an_empty_prompt_generates_from_bos_where_there_is_one(serve) -> None:
    with_bos = serve(make_engine(say("x")))
    for prompt in ("", [""]):
        body = with_bos.complete(prompt).json()
        assert body["usage"]["prompt_tokens"] == 1
        assert body["choices"][0]["text"] == "x"
    without = serve(make_engine(say("x"), tokenizer=ByteTokenizer(add_bos=False)))
    for prompt in ("", [""], [], [[]]):
        assert without.complete(prompt).status_code == 400, prompt
    assert without.complete("a").json()["choices"][0]["text"] == "x"


def test_one_bad_prompt_leaves_nothing_of_the_others_behind(serve) -> None:
    server = serve(make_engine(echo))
    assert server.complete([[97], [32000], [98]]).status_code == 400
    assert server.client.get("/v1/requests").json()["data"] == []
    assert server.complete("ab").json()["choices"][0]["text"] == "ab"
