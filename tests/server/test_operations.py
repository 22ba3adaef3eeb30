"""What those who run a server rely on: keys, limits, health, draining, disconnects, logs."""

from __future__ import annotations

import io
import json
import queue
import socket
import threading
import time

import httpx
import pytest
from live_server import HANG_S, LiveServer, wait_until
from scripted import ENDLESS, echo, make_engine, say

from byte_model import ByteTokenizer
from pelton.server import bodies
from pelton.server.auth import ApiKeys
from pelton.server.bodies import parse_body

KEYS = ApiKeys.from_lines(["alice:secret-of-alice", "bob:secret-of-bob"])
ALICE = {"authorization": "Bearer secret-of-alice"}
GONE = 'pelton:http_errors_total{code="client_gone",status="499"} 1.0'


def is_idle(server: LiveServer) -> bool:
    """No request is left, in the server or in the engine."""
    return len(server.state.live) == 0 and server.engine.stats().num_unfinished == 0


OPEN = [("/health", "GET"), ("/ready", "GET"), ("/", "GET"), ("/web/{name}", "GET")]


def test_every_route_but_health_and_the_page_needs_a_key(serve) -> None:
    server = serve(make_engine(echo), keys=KEYS)
    paths = [(route.path, method) for route in iter_routes(server) for method in route.methods]
    assert ("/", "POST") in paths, "which generates, as TGI has it, beside the page"
    assert len(paths) >= 8
    for path, method in [*paths, ("/docs", "GET"), ("/openapi.json", "GET"), ("/no/such/path", "GET")]:
        response = server.client.request(method, path.replace("{model:path}", "tiny").replace("{name}", "app.js"))
        if (path, method) in OPEN:
            assert response.status_code == 200
        else:
            assert response.status_code == 401, path
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()
    assert server.client.get("/v1/models", headers=ALICE).status_code == 200
    assert server.client.get("/v1/models", headers={"x-api-key": "secret-of-bob"}).status_code == 200
    assert server.client.get("/docs", headers=ALICE).status_code == 200


def iter_routes(server: LiveServer):
    """Path and methods of every operation in the server's own document."""
    document = server.client.get("/openapi.json", headers=ALICE).json()
    from types import SimpleNamespace

    for path, operations in document["paths"].items():
        yield SimpleNamespace(path=path, methods={method.upper() for method in operations})


def test_requests_per_minute_are_counted_by_key(serve) -> None:
    server = serve(make_engine(echo), keys=KEYS, requests_per_minute=2)
    server.state.limiter.clock = lambda: 1000.0
    client = server.client
    client.headers.update(ALICE)
    body = {"prompt": "a"}
    statuses = [client.post("/v1/completions", json=body).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    refused = client.post("/v1/completions", json=body)
    assert int(refused.headers["retry-after"]) == 30
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert "secret" not in refused.text
    other = {"authorization": "Bearer secret-of-bob"}
    assert client.post("/v1/completions", json=body, headers=other).status_code == 200
    assert client.get("/v1/models").status_code == 200, "only work is counted"


def test_tokens_per_minute_are_counted_by_key(serve) -> None:
    server = serve(make_engine(echo), tokens_per_minute=10)
    server.state.limiter.clock = lambda: 1000.0
    assert server.complete("abcdef").status_code == 200  # 7 + 7 tokens
    refused = server.complete("a")
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) == 30  # 5 tokens are missing, 10 a minute come


def test_bodies_have_a_longest_length_with_and_without_a_declared_one(serve) -> None:
    server = serve(make_engine(echo), max_body_bytes=2000)
    assert server.complete("x" * 3000).status_code == 413
    response = server.client.post("/v1/completions", content=(b"x" * 500 for _ in range(10)))
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert server.complete("ab").status_code == 200


def test_limits_of_the_server_are_named(serve) -> None:
    server = serve(make_engine(echo), max_prompt_tokens=5, max_choices=2, max_stop_strings=1, max_schema_bytes=40)
    refusal = server.complete([97] * 6).json()["error"]
    assert (refusal["param"], refusal["message"]) == ("prompt", "number of tokens of prompt is 6; allowed: at most 5")
    assert server.complete("abcdef").status_code == 400, "BOS counts"
    assert server.complete("abcd").status_code == 200
    assert server.complete("a", n=3).json()["error"]["param"] == "n"
    assert server.complete("a", stop=["a", "b"]).json()["error"]["param"] == "stop"
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "x" * 50}}}
    assert "response_format" in server.complete("a", response_format=schema).json()["error"]["param"]


def test_a_structure_is_measured_in_bytes(serve) -> None:
    server = serve(make_engine(echo), max_schema_bytes=40)
    assert server.complete("a", structured_outputs={"regex": "\u00e9" * 20}).status_code == 200
    refused = "size of structured_outputs is 42; allowed: at most 40 bytes"
    for too_long in ({"regex": "\u00e9" * 21}, {"choice": ["\u4e2d" * 7, "\u4e09" * 7]}):
        assert server.complete("a", structured_outputs=too_long).json()["error"]["message"] == refused


def test_a_full_queue_refuses_with_the_time_to_wait(serve) -> None:
    server = serve(make_engine(say("x", end=None), max_num_seqs=1, max_queued_requests=1))
    runner = server.engine.runner
    threads = [threading.Thread(target=server.complete, args=("abc",), kwargs={"max_tokens": 50}) for _ in range(2)]
    try:
        runner.close_gate_at = 3
        threads[0].start()
        wait_until(lambda: runner.num_steps == 3, "the first request to run")
        threads[1].start()
        wait_until(lambda: [live.num_prompt_tokens for live in server.state.live] == [4, 4], "the second to wait")
        for _ in range(3):  # nothing but a refusal can be an answer while the engine stands still
            refused = server.complete("abc")
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "queue_full"
            assert int(refused.headers["retry-after"]) >= 1
    finally:
        server.engine.runner.gate.set()
        for thread in threads:
            thread.join()


def test_health_and_errors_do_not_wait_for_a_step_of_the_engine(serve) -> None:
    server = serve(make_engine(say("x", end=None), model_context=4000, num_blocks=40_000))
    runner = server.engine.runner
    runner.close_gate_at = 2
    body = {"prompt": "x" * 500, "max_tokens": 20, "stream": True}
    threads = [threading.Thread(target=server.complete, kwargs=body) for _ in range(8)]
    try:
        for thread in threads:
            thread.start()
        wait_until(lambda: [live.num_prompt_tokens for live in server.state.live] == [501] * 8, "the load")
        wait_until(lambda: not runner.gate.is_set(), "a step that takes as long as this test")
        assert server.client.get("/health").status_code == 200
        assert server.client.get("/metrics").status_code == 200
        assert len(server.client.get("/v1/requests").json()["data"]) == 8
        assert server.chat(temperature=-1).status_code == 400
    finally:
        runner.gate.set()
        for thread in threads:
            thread.join()


def test_a_huge_prompt_does_not_hold_others_up(serve, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: queue.SimpleQueue[str] = queue.SimpleQueue()
    may_go_on = threading.Semaphore(0)

    def hold(place: str) -> None:
        reached.put(place)
        assert may_go_on.acquire(timeout=60), f"{place} stands in the way of the event loop"

    class SlowTokenizer(ByteTokenizer):
        def count_least_tokens(self, text: str) -> int:
            hold("tokenizer")
            return super().count_least_tokens(text)

    def parse_slowly(data: bytes, schema: type) -> object:
        hold("parser")
        return parse_body(data, schema)

    server = serve(make_engine(echo, tokenizer=SlowTokenizer()))
    monkeypatch.setattr(bodies, "parse_body", parse_slowly)
    statuses: list[int] = []
    big = threading.Thread(target=lambda: statuses.append(server.complete("q" * 3_000_000).status_code))
    big.start()
    for place in ("parser", "tokenizer"):
        assert reached.get(timeout=HANG_S) == place
        assert httpx.get(f"{server.url}/health", timeout=HANG_S).status_code == 200
        may_go_on.release()
    big.join()
    assert statuses == [400]


def test_a_dead_engine_is_an_error_for_all_and_not_ready(serve) -> None:
    server = serve(make_engine(say("x", end=None), **ENDLESS))
    runner = server.engine.runner
    runner.step_s = 0.005
    with server.client.stream(
        "POST", "/v1/completions", json={"prompt": "a", "stream": True, "max_tokens": 90_000}
    ) as stream:
        lines = stream.iter_lines()
        next(lines)
        runner.die = SystemExit("scripted death")
        rest = [line for line in lines if line]
    assert "engine" in json.loads(rest[-1][6:])["error"]["message"]
    assert "data: [DONE]" not in rest
    assert server.client.get("/ready").status_code == 503
    assert server.client.get("/health").status_code == 200
    refused = server.complete("a")
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "engine_dead"


def open_raw(server: LiveServer, body: dict[str, object]) -> socket.socket:
    """Send a request over a bare socket, which may then be closed at any time."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("when", ["decode", "prefill", "queue"])
def test_a_client_that_leaves_is_aborted_within_a_step(serve, stream: bool, when: str) -> None:
    server = serve(make_engine(say("x", end=None), max_num_seqs=1, **ENDLESS))
    runner = server.engine.runner
    runner.step_s = 0.002
    body = {"prompt": "abc", "max_tokens": 90_000, "stream": stream}
    if when == "queue":
        first = open_raw(server, body)
        wait_until(lambda: runner.num_steps > 2, "the first request to run")
    if when == "prefill":
        runner.gate.clear()
    connection = open_raw(server, body)
    if when == "decode":
        wait_until(lambda: runner.num_steps > 2, "some tokens")
    else:
        wait_until(lambda: len(server.state.live) == 1 + (when == "queue"), "the request to arrive")
    connection.close()
    if when == "queue":
        wait_until(lambda: len(server.state.live) == 1, "the queued request to be gone")
        first.close()
    runner.gate.set()
    wait_until(lambda: is_idle(server), "the engine to be idle")
    num_steps = runner.num_steps
    time.sleep(0.02)
    assert runner.num_steps <= num_steps + 1, "nothing runs on"
    runner.step_s = 0.0
    assert server.complete("abc", max_tokens=2).json()["usage"]["completion_tokens"] == 2


def test_twins_of_one_request_id_do_not_meet(serve) -> None:
    server = serve(make_engine(echo))
    server.engine.runner.step_s = 0.005
    headers = {"x-request-id": "twin"}
    text = "abcdefgh" * 20
    body = {"prompt": text, "stream": True, "max_tokens": 200}
    with server.client.stream("POST", "/v1/completions", json=body, headers=headers) as first:
        lines = first.iter_lines()
        next(lines)
        with httpx.Client(base_url=server.url, headers=headers, timeout=HANG_S) as other:
            with other.stream("POST", "/v1/completions", json=body) as second:
                rest = second.iter_lines()
                line = next(rest)
                first.close()
                events = [json.loads(line[6:]) for line in (line, *rest) if line.startswith("data: {")]
            assert "".join(event["choices"][0]["text"] for event in events) == text
            assert second.headers["x-request-id"] == "twin"
            assert other.post("/v1/completions", json={"prompt": "ab"}).json()["choices"][0]["text"] == "ab"
    wait_until(lambda: is_idle(server), "the engine to be idle")


def test_a_silent_stream_is_kept_alive_by_comments(serve) -> None:
    server = serve(make_engine(echo), keep_alive_s=0.05)
    server.engine.runner.gate.clear()
    with server.client.stream("POST", "/v1/completions", json={"prompt": "abc", "stream": True}) as stream:
        lines = stream.iter_lines()
        assert [next(lines) for _ in range(4)] == [": keep-alive", ""] * 2
        server.engine.runner.gate.set()
        seen = [line for line in lines if line and line != ": keep-alive"]
    assert all(line.startswith("data: ") for line in seen)
    assert seen[-1] == "data: [DONE]"


def test_draining_finishes_what_is_open_and_refuses_the_rest(serve) -> None:
    server = serve(make_engine(echo))
    server.engine.runner.step_s = 0.01
    with (
        httpx.Client(base_url=server.url, timeout=HANG_S) as kept,
        kept.stream("POST", "/v1/completions", json={"prompt": "abcdefgh" * 2, "stream": True, "max_tokens": 20}) as s,
    ):
        lines = s.iter_lines()
        next(lines)
        server.state.is_draining = True
        assert server.client.get("/ready").status_code == 503
        assert server.client.get("/ready").json() == {"status": "draining"}
        refused = server.complete("a")
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_closing"
        server.server.should_exit = True
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    server.join()


def test_draining_ends_what_takes_too_long_with_an_error(serve) -> None:
    server = serve(make_engine(say("x", end=None), **ENDLESS), drain_timeout_s=0.1)
    server.engine.runner.step_s = 0.005
    whole: list[httpx.Response] = []
    body = {"prompt": "a", "max_tokens": 90_000}
    url = f"{server.url}/v1/completions"
    waiting = threading.Thread(target=lambda: whole.append(httpx.post(url, json=body, timeout=HANG_S)))
    waiting.start()
    with server.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        wait_until(lambda: len(server.state.live) == 2, "both requests")
        server.server.should_exit = True
        rest = [line for line in lines if line]
    assert json.loads(rest[-1][6:])["error"]["code"] == "server_closing"
    waiting.join(HANG_S)
    assert whole[0].status_code == 503
    server.join()


def test_a_request_that_takes_too_long_is_an_error(serve) -> None:
    server = serve(make_engine(say("x", end=None)), request_timeout_s=0.1)
    server.engine.runner.step_s = 0.01
    response = server.complete("a", max_tokens=400)
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "request_timeout"
    assert is_idle(server)


def test_one_json_line_per_request_without_prompts_and_keys(serve) -> None:
    stream = io.StringIO()
    server = serve(make_engine(echo), keys=KEYS, log_stream=stream)
    headers = {**ALICE, "x-request-id": "from-client"}
    server.client.post("/v1/completions", json={"prompt": "a secret prompt", "user": "u1"}, headers=headers)
    server.client.post("/v1/completions", json={"prompt": "x", "nope": 1}, headers=ALICE)
    server.client.get("/nope")
    wait_until(lambda: stream.getvalue().count("\n") == 3, "three lines")
    assert "secret" not in stream.getvalue()
    good, bad, unknown = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (good["request_id"], good["path"], good["status"], good["caller"], good["user"]) == (
        "from-client",
        "/v1/completions",
        200,
        "alice",
        "u1",
    )
    (generation,) = good["generations"]
    assert generation["prompt_tokens"] == 16
    assert generation["finish_reasons"] == ["stop"]
    assert good["duration_ms"] >= generation["ttft_ms"] > 0
    assert (bad["status"], unknown["status"], unknown["caller"]) == (400, 401, None)


def test_what_a_page_polls_is_logged_when_it_fails_only(serve) -> None:
    stream = io.StringIO()
    server = serve(make_engine(echo), log_stream=stream)
    for path in ("/v1/engine", "/v1/kv_cache", "/web/app.js", "/v1/kv_cache?request=nobody", "/v1/models"):
        server.client.get(path)
    wait_until(lambda: stream.getvalue().count("\n") == 2, "two lines")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["path"], line["status"]) for line in lines] == [("/v1/kv_cache", 404), ("/v1/models", 200)]


def test_a_client_that_left_is_logged_as_gone(serve) -> None:
    stream = io.StringIO()
    server = serve(make_engine(say("x", end=None), **ENDLESS), log_stream=stream)
    server.engine.runner.step_s = 0.005
    with open_raw(server, {"prompt": "a", "stream": True, "max_tokens": 90_000}) as connection:
        assert connection.recv(10)
    wait_until(lambda: "\n" in stream.getvalue(), "the line")
    assert json.loads(stream.getvalue())["status"] == 499
    assert GONE in server.client.get("/metrics").text


@pytest.mark.parametrize("head", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_a_client_that_left_inside_its_body_is_gone_and_no_error(serve, head: str) -> None:
    stream = io.StringIO()
    server = serve(make_engine(echo), log_stream=stream)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n1\r\n{{\r\n".encode())
    wait_until(lambda: "\n" in stream.getvalue(), "the line")
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert (line["status"], line["path"]) == (499, "/v1/completions")
    assert "traceback" not in line
    errors = [
        line for line in server.client.get("/metrics").text.splitlines() if line.startswith("pelton:http_errors_")
    ]
    assert [line for line in errors if "_total{" in line] == [GONE]


def test_the_live_table_shows_what_is_under_way(serve) -> None:
    server = serve(make_engine(say("x", end=None), **ENDLESS), keys=KEYS)
    server.engine.runner.step_s = 0.005
    body = {"prompt": "abc", "stream": True, "n": 2, "max_tokens": 50_000}
    client = server.client
    client.headers.update(ALICE)
    with client.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()
        next(lines)
        (row,) = server.client.get("/v1/requests").json()["data"]
    assert row["route"] == "/v1/completions"
    assert row["caller"] == "alice"
    assert row["stream"] is True
    assert row["n"] == 2
    assert row["output_tokens"] >= 1
    assert row["state"] == "decoding"
    assert row["has_trace"] is True
    assert row["http_request_id"] == stream.headers["x-request-id"]
    assert row["age_ms"] >= row["ttft_ms"] > 0
    wait_until(lambda: is_idle(server), "the engine to be idle")
