"""/v1/requests, one request's story and trace by any of its ids, and /v1/steps."""

from __future__ import annotations

import threading
from urllib.parse import quote

import pytest
from live_server import LiveServer, wait_until
from scripted import echo, make_engine, say

from trace_format import check_trace_format

MESSAGES = [{"role": "user", "content": "abc"}]


def get_story(server: LiveServer, name: str) -> dict:
    response = server.client.get(f"/v1/requests/{name}")
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize(
    ("path", "body", "prefix"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}, "chatcmpl-"),
        ("/v1/completions", {"prompt": "abc"}, "cmpl-"),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 9}, "msg_"),
        ("/v1/responses", {"input": "abc"}, "resp_"),
    ],
)
def test_any_id_of_a_request_finds_its_story(echo_server, path: str, body: dict, prefix: str) -> None:
    response = echo_server.client.post(path, json={"model": "tiny", **body})
    name, request_id = response.json()["id"], response.headers["x-request-id"]
    assert name.startswith(prefix)
    suffix = name.removeprefix(prefix)
    assert request_id == f"req-{suffix}"
    story = get_story(echo_server, name)
    assert story["request_id"] == f"gen-{suffix}"
    assert story["state"] == "finished"
    assert story == get_story(echo_server, request_id) == get_story(echo_server, f"gen-{suffix}")


def test_further_prompts_are_generations_with_numbers(echo_server) -> None:
    name = echo_server.complete(["a", "bcd", "ef"]).json()["id"]
    suffix = name.removeprefix("cmpl-")
    stories = [get_story(echo_server, f"gen-{suffix}{end}") for end in ("", "-1", "-2")]
    assert [story["prompt_tokens"] for story in stories] == [2, 4, 3]
    assert get_story(echo_server, name) == stories[0]


def test_a_clients_own_request_id_finds_the_last_of_that_name(serve, monkeypatch) -> None:
    monkeypatch.setattr("pelton.server.request_names.MAX_NUM_NAMES", 2)
    server = serve(make_engine(echo))
    for prompt, name in (("a", "mine"), ("bcd", "mine"), ("ef", "other")):
        server.client.post("/v1/completions", json={"prompt": [prompt, "x"]}, headers={"x-request-id": name})
    assert get_story(server, "mine")["prompt_tokens"] == 4
    assert get_story(server, "other")["prompt_tokens"] == 3
    server.client.post("/v1/completions", json={"prompt": "x"}, headers={"x-request-id": "third"})
    assert server.client.get("/v1/requests/mine").status_code == 404
    assert get_story(server, "other")["prompt_tokens"] == 3


@pytest.mark.parametrize("path", ["/v1/requests/nobody", "/v1/requests/nobody/trace"])
def test_an_unknown_request_is_a_404_that_says_what_is_kept(serve, path: str) -> None:
    server = serve(make_engine(echo, num_kept_traces=7))
    response = server.client.get(path)
    assert response.status_code == 404
    assert response.json()["error"]["message"] == (
        "request 'nobody' is not known: unfinished requests and the last 7 finished ones are kept"
    )


def test_an_id_with_slashes_finds_its_request(echo_server) -> None:
    name = "gateway/7/../explain?x=1"
    body = {"prompt": "x", "max_tokens": 2}
    request_id = echo_server.client.post("/v1/completions", json=body, headers={"x-request-id": name}).json()["id"]
    path = f"/v1/requests/{quote(name, safe='')}"
    assert echo_server.client.get(path).json()["request_id"] == f"gen-{request_id.removeprefix('cmpl-')}"
    assert echo_server.client.get(f"{path}/trace").json()["traceEvents"]
    assert echo_server.client.get(f"{path}/explain").json()["subject"] == "request"


def test_a_request_that_is_not_kept_any_more_is_unknown(serve) -> None:
    server = serve(make_engine(echo, num_kept_traces=1))
    first, second = (server.complete("abc").json()["id"] for _ in range(2))
    wait_until(lambda: server.engine.traces.num_finished == 2, "the second one to end")
    assert server.client.get(f"/v1/requests/{first}").status_code == 404
    assert get_story(server, second)["state"] == "finished"


def test_the_story_has_times_waits_chunks_tokens_and_sends(serve) -> None:
    server = serve(make_engine(echo, prefill_chunk=8))
    response = server.complete("abcdefghijklmno", stream=True)
    assert response.text.endswith("data: [DONE]\n\n")
    story = get_story(server, response.headers["x-request-id"])
    assert [chunk["tokens"] for chunk in story["prefill"]] == [8, 8]
    assert [chunk["others_tokens"] for chunk in story["prefill"]] == [0, 0]
    assert len(story["decode"]) == story["output_tokens"] - 1 == 15
    assert story["finish_reason"] == "stop"
    assert story["cache_miss"] == {"reason": "first_time", "position": 0}
    times = story["times"]
    assert times["ttft"] == pytest.approx(times["tokenize"] + times["queue"] + times["prefill"], abs=0.01)
    waits_ms = sum(wait["end"] - wait["start"] for wait in story["waits"])
    assert waits_ms == pytest.approx(times["queue"], abs=0.01)
    gaps_ms = sum(row["gap"] for row in story["decode"])
    assert gaps_ms == pytest.approx(times["decode"], abs=0.1)
    assert 1 <= len(story["sends"]) <= story["output_tokens"]
    assert all(send["taken"] <= send["done"] for send in story["sends"])


def test_live_requests_have_states_and_stories(serve) -> None:
    server = serve(make_engine(say("x", end=None), max_num_seqs=1))
    runner = server.engine.runner
    runner.gate.clear()
    threads = [threading.Thread(target=server.complete, args=("abc",), kwargs={"max_tokens": 3}) for _ in range(2)]
    try:
        threads[0].start()
        wait_until(lambda: len(server.engine.traces.list_live()) == 1, "the first request")
        threads[1].start()
        wait_until(lambda: len(server.state.live) == 2, "the second request")
        rows = server.client.get("/v1/requests").json()["data"]
        assert [row["state"] for row in rows] == ["queued", "queued"]  # the first step is not over
        runner.step_s = 0.02
        runner.gate.set()
        wait_until(lambda: any(t.state == "decoding" for t in server.engine.traces.list_live()), "a token")
        rows = server.client.get("/v1/requests").json()["data"]
        assert rows[0]["cached_tokens"] == 0
        live = server.engine.traces.list_live()[-1]
        story = get_story(server, live.request_id)
        assert story["request_id"] == live.request_id
    finally:
        runner.gate.set()
        for thread in threads:
            thread.join()
    states = {row["state"] for row in server.client.get("/v1/requests").json()["finished"]}
    assert states == {"finished"}


def test_finished_requests_are_listed_newest_first(serve) -> None:
    server = serve(make_engine(echo))
    names = [server.complete("abcd"[:n]).json()["id"] for n in (1, 2, 3, 4)]
    wait_until(lambda: server.engine.traces.num_finished == 4, "all to end")
    rows = server.client.get("/v1/requests").json()["finished"]
    assert [row["request_id"] for row in rows] == [name.replace("cmpl-", "gen-") for name in names[::-1]]
    newest = rows[0]
    assert (newest["prompt_tokens"], newest["output_tokens"], newest["cached_tokens"]) == (5, 5, 4)
    assert (newest["finish_reason"], newest["preemptions"], newest["caller"]) == ("stop", 0, "anonymous")
    assert newest["total_ms"] >= newest["ttft_ms"] > 0
    assert newest["itl_ms"] > 0
    assert rows[-1]["age_ms"] > newest["age_ms"] >= 0
    assert server.client.get("/v1/requests?limit=1").json()["finished"][0]["request_id"] == newest["request_id"]
    assert len(server.client.get("/v1/requests?limit=3").json()["finished"]) == 3
    assert server.client.get("/v1/requests?limit=0").json()["finished"] == []


@pytest.mark.parametrize("query", ["requests?limit=-1", "requests?limit=x", "steps?limit=99999", "steps?after=1e3"])
def test_bad_counts_are_refused_by_name(echo_server, query: str) -> None:
    response = echo_server.client.get(f"/v1/{query}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == query.split("?")[1].split("=")[0]


def test_the_trace_of_a_request_is_a_file_for_perfetto(echo_server) -> None:
    name = echo_server.complete("abc").json()["id"]
    response = echo_server.client.get(f"/v1/requests/{name}/trace")
    generation = name.replace("cmpl-", "gen-")
    assert response.headers["content-disposition"] == f'attachment; filename="trace-{generation}.json"'
    events = check_trace_format(response.json())
    names = [event["name"] for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert names.count("decode") == 3
    assert "tokenise" in names
    steps = [event for event in events if event["ph"] == "X" and event["name"].startswith("step ")]
    assert all(generation in step["args"]["tokens_of"] for step in steps)
    assert len(steps) == 4


def test_steps_are_read_on_from_the_last_one_seen(serve) -> None:
    server = serve(make_engine(echo))
    assert server.client.get("/v1/steps").json()["steps"] == []
    assert server.client.get("/v1/steps").json()["next"] == 0
    name = server.complete("abc").json()["id"].replace("cmpl-", "gen-")
    first = server.client.get("/v1/steps").json()
    assert [step["number"] for step in first["steps"]] == [1, 2, 3, 4]
    assert first["next"] == 4
    assert [step["shares"][0][1:] for step in first["steps"]] == [[0, 4], [4, 1], [5, 1], [6, 1]]
    (number,) = first["sequences"]
    assert first["sequences"][number] == name
    assert {step["shares"][0][0] for step in first["steps"]} == {int(number)}
    assert [(step["decodes"], step["prompt_tokens"]) for step in first["steps"]] == [(0, 4), (1, 0), (1, 0), (1, 0)]
    assert all(step["start"] <= step["end"] <= first["now"] for step in first["steps"])
    # A scripted engine has no file of a model, so there is nothing to count.
    assert {step["bytes"] for step in first["steps"]} == {None}
    assert server.client.get(f"/v1/steps?after={first['next']}").json()["steps"] == []
    assert server.client.get(f"/v1/steps?after={first['next']}").json()["next"] == 4
    server.complete("x")
    more = server.client.get(f"/v1/steps?after={first['next']}").json()
    assert [step["number"] for step in more["steps"]] == [5, 6]
    assert [step["number"] for step in server.client.get("/v1/steps?limit=1").json()["steps"]] == [6]
