"""/v1/chat/completions: whole answers and streams, their shapes, and every error."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from live_server import LiveServer, wait_until
from scripted import echo, make_engine, say

from byte_model import BOS, EOS, ByteTokenizer, follow
from pelton.core.request import Request


def read_events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream that ended with `[DONE]`."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


def join_content(events: list[dict[str, Any]], index: int = 0) -> str:
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_an_answer_has_openais_fields_and_timings(echo_server: LiveServer) -> None:
    response = echo_server.chat("hi", max_tokens=100)
    assert response.status_code == 200
    body = response.json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "tiny"
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "[user]hi", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "stop", None)
    # <s>[user]hi is 9 tokens; the answer is 8 and the end token.
    assert body["usage"]["prompt_tokens"] == 9
    assert body["usage"]["completion_tokens"] == 9
    assert body["usage"]["total_tokens"] == 18
    timings = body["timings"]
    assert timings["prompt_n"] + timings["cache_n"] == 9
    assert timings["predicted_n"] == 9
    for name in ("prompt_ms", "predicted_ms", "prompt_per_second", "predicted_per_second", "queue_ms", "ttft_ms"):
        assert timings[name] >= 0
    assert set(timings["itl_ms"]) == {"mean", "p50", "p99"}
    assert timings["ttft_ms"] >= timings["queue_ms"] + timings["prompt_ms"] - 0.01


def test_a_stream_begins_with_the_role_and_ends_with_reason_timings_and_done(echo_server: LiveServer) -> None:
    events = read_events(echo_server.chat("hello", stream=True))
    assert len({(e["id"], e["created"], e["model"], e["object"]) for e in events}) == 1
    assert events[0]["object"] == "chat.completion.chunk"
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert join_content(events) == "[user]hello"
    assert [e["choices"][0]["finish_reason"] for e in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert set(events[-1]["choices"][0]["delta"]) <= {"content"}
    assert events[-1]["timings"]["predicted_n"] == 12
    assert all("timings" not in e for e in events[:-1])


@pytest.mark.parametrize("stream_options", [None, {}, {"include_usage": False}])
def test_usage_is_not_sent_unasked(echo_server: LiveServer, stream_options: object) -> None:
    events = read_events(echo_server.chat("hi", stream=True, stream_options=stream_options))
    assert all("usage" not in e for e in events)
    assert all(e["choices"] for e in events)


def test_usage_comes_once_at_the_end_and_is_null_before(echo_server: LiveServer) -> None:
    events = read_events(
        echo_server.chat("hi", stream=True, n=2, stop="h", stream_options={"include_usage": True}, seed=1)
    )
    *chunks, last = events
    assert all(e["usage"] is None for e in chunks)
    assert all(len(e["choices"]) == 1 for e in chunks)
    assert last["choices"] == []
    usage = last["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == 2 * 7  # [user]h: the stop string's token was computed
    assert "predicted_n" in last["timings"]
    for index in (0, 1):
        assert join_content(events, index) == "[user]"
        reasons = [c["finish_reason"] for e in chunks for c in e["choices"] if c["index"] == index]
        assert [r for r in reasons if r] == ["stop"]
        roles = [c["delta"].get("role") for e in chunks for c in e["choices"] if c["index"] == index]
        assert [r for r in roles if r] == ["assistant"]
        seeds = [c["seed"] for e in chunks for c in e["choices"] if c["index"] == index and c["finish_reason"]]
        assert seeds == [1 + index]


def test_stop_strings_are_reported_and_never_shown(serve) -> None:
    pieces = ("A", "BC", "DE", "F")
    tokenizer = ByteTokenizer(pieces=pieces)
    server = serve(make_engine(follow(tokenizer.get_piece_ids(pieces)), tokenizer=tokenizer))
    body = server.chat(stop=["CDE"], max_tokens=4).json()
    assert body["choices"][0]["message"]["content"] == "AB"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["stop_reason"] == "CDE"
    assert body["usage"]["completion_tokens"] == 3, "nothing after DE is generated"
    events = read_events(server.chat(stop=["CDE"], max_tokens=4, stream=True))
    assert join_content(events) == "AB"
    assert not any("C" in (c["delta"].get("content") or "") for e in events for c in e["choices"])
    assert events[-1]["choices"][0]["stop_reason"] == "CDE"


def test_characters_of_several_tokens_arrive_whole(serve) -> None:
    server = serve(make_engine(say("A🦀漢é", end=None)))
    response = server.chat(stream=True, max_tokens=10, stream_options={"include_usage": True})
    events = read_events(response)
    assert join_content(events) == "A🦀漢é"
    assert "\\ufffd" not in response.text
    assert events[-1]["usage"]["completion_tokens"] == 10


def test_choices_use_seed_and_those_after_it(echo_server: LiveServer) -> None:
    body = echo_server.chat(n=3, seed=40, max_tokens=2).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["seed"] for choice in body["choices"]] == [40, 41, 42]
    assert body["usage"]["completion_tokens"] == 6
    assert [choice["finish_reason"] for choice in body["choices"]] == ["length"] * 3


def test_logprobs_without_a_number_report_the_chosen_token_only(serve) -> None:
    server = serve(make_engine(say("é", end=None)))
    content = server.chat(logprobs=True, max_tokens=2).json()["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert [entry["bytes"] for entry in content] == [[0xC3], [0xA9]]
    assert [entry["logprob"] for entry in content] == [-0.5, -0.5]
    assert [entry["top_logprobs"] for entry in content] == [[], []]


def test_a_chosen_token_outside_the_alternatives_is_reported(serve) -> None:
    server = serve(make_engine(say("x", end=None)))
    for stream in (False, True):
        response = server.chat(logprobs=True, top_logprobs=2, max_tokens=3, stream=stream)
        if stream:
            choices = [c for e in read_events(response) for c in e["choices"] if c["logprobs"]]
            content = [entry for choice in choices for entry in choice["logprobs"]["content"]]
        else:
            content = response.json()["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in content] == ["x"] * 3
        assert [[top["bytes"] for top in entry["top_logprobs"]] for entry in content] == [[[0], [1]]] * 3


def test_there_are_as_many_logprobs_as_tokens_counted(echo_server: LiveServer) -> None:
    events = read_events(
        echo_server.chat("abc", logprobs=True, stream=True, stop=["c"], stream_options={"include_usage": True})
    )
    num = sum(len(c["logprobs"]["content"]) for e in events for c in e["choices"] if c["logprobs"])
    assert num == events[-1]["usage"]["completion_tokens"]


@pytest.mark.parametrize(("field", "number"), [("max_tokens", 1), ("max_completion_tokens", 2)])
def test_exactly_as_many_tokens_as_asked_for(echo_server: LiveServer, field: str, number: int) -> None:
    body = echo_server.chat("hello", **{field: number}).json()
    assert body["usage"]["completion_tokens"] == number
    assert body["choices"][0]["finish_reason"] == "length"


def test_no_limit_goes_on_to_the_end_of_the_context(serve) -> None:
    server = serve(make_engine(say("x", end=None), model_context=40))
    body = server.chat("hi", max_tokens=None).json()
    assert body["usage"]["total_tokens"] == 40
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, -5, 2**63, 10**30, 1.5, "3", True])
def test_other_limits_are_refused_by_name(echo_server: LiveServer, field: str, value: object) -> None:
    check_refusal(echo_server.chat(**{field: value}), field)


def check_refusal(response: httpx.Response, field: str | None, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["message"]
    if field is not None:
        assert error["param"] is not None
        assert error["param"].split("[")[0].split(".")[0] == field
    return error


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "nan"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 1000}, "presence_penalty"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": 5}, "stop"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs"),
        ({"Max_tokens": 1}, "Max_tokens"),
        ({"logit_bias": {"3": 1, "03": 2}}, "logit_bias"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"259": 5}}, "logit_bias"),
        ({"logit_bias": {"3": 1e9}}, "logit_bias"),
        ({"logit_bias": {"3": None}}, "logit_bias"),
        ({"stop_token_ids": [99999]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 129}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens"),
        ({"stream_options": {"include_usage": True, "x": 1}, "stream": True}, "stream_options"),
        ({"stream_options": {"include_obfuscation": True}, "stream": True}, "stream_options"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"store": True}, "store"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"functions": []}, "functions"),
        ({"audio": {}}, "audio"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"stream": "yes"}, "stream"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x", "colour": "red"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
    ],
)
def test_what_is_wrong_is_named(echo_server: LiveServer, fields: dict[str, object], name: str | None) -> None:
    for stream in (False, True):
        body = {"messages": [{"role": "user", "content": "x"}], "stream": stream, **fields}
        if "stream_options" in fields and "stream" not in fields:
            body["stream"] = False
        check_refusal(echo_server.client.post("/v1/chat/completions", json=body), name)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", '"nan"'])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "frequency_penalty", "logit_bias"])
def test_numbers_that_are_none_do_no_harm(echo_server: LiveServer, field: str, number: str) -> None:
    value = f'{{"3": {number}}}' if field == "logit_bias" else number
    body = f'{{"messages": [{{"role": "user", "content": "x"}}], "{field}": {value}}}'
    check_refusal(echo_server.client.post("/v1/chat/completions", content=body), None)
    assert echo_server.chat("x").json()["choices"][0]["message"]["content"] == "[user]x"


def test_a_neighbour_is_not_touched_by_bad_ids(serve) -> None:
    server = serve(make_engine(echo))
    server.engine.runner.step_s = 0.005
    with server.client.stream("POST", "/v1/completions", json={"prompt": "neighbour", "stream": True}) as stream:
        lines = stream.iter_lines()
        first = next(lines)
        assert server.complete([1, 32000]).status_code == 400
        assert server.chat(logit_bias={"-1": 5}).status_code == 400
        events = [json.loads(line[6:]) for line in (first, *lines) if line.startswith("data: {")]
    assert "".join(e["choices"][0]["text"] for e in events) == "neighbour"


def test_content_parts_are_joined_and_never_printed_as_objects(echo_server: LiveServer) -> None:
    parts = [{"type": "text", "text": "red"}, {"type": "text", "text": "fox"}]
    content = echo_server.chat(parts).json()["choices"][0]["message"]["content"]
    assert content == "[user]red\nfox"
    for empty in ("", [], None):
        response = echo_server.client.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "assistant", "content": empty}, {"role": "user", "content": "x"}]},
        )
        assert response.status_code == 200, response.text
        assert "None" not in response.json()["choices"][0]["message"]["content"]


def test_a_templates_refusal_is_the_clients_error_in_its_words(echo_server: LiveServer) -> None:
    response = echo_server.client.post("/v1/chat/completions", json={"messages": [{"role": "villain", "content": "x"}]})
    error = check_refusal(response, None)
    assert "no villains" in error["message"]
    assert error["code"] == "chat_template_error"


def test_a_chat_has_one_bos_and_its_usage_agrees(serve) -> None:
    for add_bos in (True, False):
        server = serve(make_engine(echo, tokenizer=ByteTokenizer(add_bos=add_bos)))
        body = server.chat("hi", return_token_ids=True).json()
        assert body["prompt_token_ids"] == [BOS, *b"[user]hi"]
        assert body["usage"]["prompt_tokens"] == 9
        assert body["choices"][0]["token_ids"][:2] == list(b"[u")


def test_a_stream_reports_the_token_ids_of_the_prompt_once_a_choice_and_all_new_ones(echo_server: LiveServer) -> None:
    events = read_events(echo_server.chat("hi", return_token_ids=True, stream=True, n=2))
    prompts = {
        event["choices"][0]["index"]: event["prompt_token_ids"] for event in events if "prompt_token_ids" in event
    }
    assert prompts == {index: [BOS, *b"[user]hi"] for index in range(2)}
    assert sum("prompt_token_ids" in event for event in events) == 2
    for index in range(2):
        choices = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert [i for choice in choices for i in choice.get("token_ids", ())] == [*b"[user]hi", EOS]
    plain = read_events(echo_server.chat("hi", stream=True))
    assert not any("token_ids" in event["choices"][0] or "prompt_token_ids" in event for event in plain)


def test_models_are_checked_by_name(echo_server: LiveServer) -> None:
    assert echo_server.chat(model="alias").json()["model"] == "alias"
    error = check_refusal(echo_server.chat(model="gpt-9"), None, 404)
    assert error["code"] == "model_not_found"
    assert "tiny" in error["message"]


def test_an_error_in_the_engine_is_an_error_for_its_request_only(serve) -> None:
    def fail_at_third(request: Request) -> int:
        if bytes(request.prompt_token_ids[-3:]) == b"bad" and len(request.output_token_ids) == 2:
            # What has not reached the route yet would be one with the error.
            wait_until(lambda: (4, 2) in {(r.num_prompt_tokens, r.num_output_tokens) for r in server.state.live}, "two")
            raise RuntimeError("scripted failure")
        return echo(request)

    server = serve(make_engine(fail_at_third))
    body = {"prompt": "neighbour", "stream": True}
    with server.client.stream("POST", "/v1/completions", json=body) as neighbour:
        lines = neighbour.iter_lines()
        first = next(lines)
        response = server.complete("bad", stream=True)
        events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
        assert "error" in events[-1]
        assert "[DONE]" not in response.text
        assert not any(c.get("finish_reason") for e in events[:-1] for c in e["choices"])
        assert "".join(c["text"] for e in events[:-1] for c in e["choices"]) == "ba"
        whole = server.complete("bad")
        assert whole.status_code == 500
        assert whole.json()["error"]["code"] == "generation_failed"
        texts = [json.loads(line[6:])["choices"][0]["text"] for line in (first, *lines) if line.startswith("data: {")]
    assert "".join(texts) == "neighbour"
