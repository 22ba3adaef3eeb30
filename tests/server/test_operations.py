"""What those who run a server rely on: keys, limits, health, draining, disconnects, logs."""

from __future__ import annotations

import io
import json
import socket
import threading
import time

import httpx
import pytest
from live_server import LiveServer, wait_until
from scripted import echo, make_engine, say

from pelton.server.auth import ApiKeys

KEYS = ApiKeys.from_lines(["alice:secret-of-alice", "bob:secret-of-bob"])
ALICE = {"authorization": "Bearer secret-of-alice"}


def is_idle(server: LiveServer) -> bool:
    """No request is left, in the server or in the engine."""
    return len(server.state.live) == 0 and server.engine.stats().num_unfinished == 0


def test_every_route_but_two_needs_a_key(serve) -> None:
    server = serve(make_engine(echo), keys=KEYS)
    paths = [(route.path, next(iter(route.methods))) for route in iter_routes(server)]
    assert len(paths) >= 8
    for path, method in [*paths, ("/docs", "GET"), ("/openapi.json", "GET"), ("/no/such/path", "GET")]:
        response = server.client.request(method, path.replace("{model:path}", "tiny"))
        if path in ("/health", "/ready"):
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
    client = server.client
    client.headers.update(ALICE)
    body = {"prompt": "a"}
    statuses = [client.post("/v1/completions", json=body).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    refused = client.post("/v1/completions", json=body)
    assert 1 <= int(refused.headers["retry-after"]) <= 30
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert "secret" not in refused.text
    other = {"authorization": "Bearer secret-of-bob"}
    assert client.post("/v1/completions", json=body, headers=other).status_code == 200
    assert client.get("/v1/models").status_code == 200, "only work is counted"


def test_tokens_per_minute_are_counted_by_key(serve) -> None:
    server = serve(make_engine(echo), tokens_per_minute=10)
    assert server.complete("abcdef").status_code == 200  # 7 + 7 tokens
    refused = server.complete("a")
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 24  # 5 tokens are missing, 10 a minute come


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


def test_a_full_queue_refuses_with_the_time_to_wait(serve) -> None:
    server = serve(make_engine(say("x", end=None), max_num_seqs=1, max_queued_requests=1))
    runner = server.engine.runner
    runner.step_s = 0.002
    threads = [threading.Thread(target=server.complete, args=("abc",), kwargs={"max_tokens": 50}) for _ in range(2)]
    try:
        threads[0].start()
        wait_until(lambda: runner.num_steps > 2, "the first request to run")
        runner.gate.clear()
        threads[1].start()
        wait_until(lambda: len(server.state.live) == 2, "the second request to wait")
        time.sleep(0.05)
        start_s = time.perf_counter()
        refused = [server.complete("abc") for _ in range(3)][-1]
        assert time.perf_counter() - start_s < 1.0
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) >= 1
    finally:
        server.engine.runner.gate.set()
        for thread in threads:
            thread.join()


def test_health_and_errors_are_fast_while_the_engine_is_saturated(serve) -> None:
    server = serve(make_engine(say("x", end=None), model_context=4000, num_blocks=40_000))
    server.engine.runner.step_s = 0.002
    stop = threading.Event()

    def load() -> None:
        with httpx.Client(base_url=server.url, timeout=30) as client:
            while not stop.is_set():
                body = {"prompt": "x" * 500, "max_tokens": 200, "stream": True}
                with client.stream("POST", "/v1/completions", json=body) as stream:
                    for _ in stream.iter_raw():
                        if stop.is_set():
                            return

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(server.state.live) >= 8, "the load")
        times: dict[str, list[float]] = {"health": [], "error": []}
        for _ in range(20):
            for name, call in (
                ("health", lambda: server.client.get("/health")),
                ("error", lambda: server.chat(temperature=-1)),
            ):
                start_s = time.perf_counter()
                call()
                times[name].append(time.perf_counter() - start_s)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    # The median: a shared machine may hold any single request up.
    assert sorted(times["health"])[10] < 0.05
    assert sorted(times["error"])[10] < 0.05


def test_a_huge_prompt_does_not_hold_others_up(serve) -> None:
    server = serve(make_engine(echo))
    big = threading.Thread(target=server.complete, args=("q" * 3_000_000,))
    worst_s = 0.0
    big.start()
    while big.is_alive():
        start_s = time.perf_counter()
        assert httpx.get(f"{server.url}/health").status_code == 200
        worst_s = max(worst_s, time.perf_counter() - start_s)
    assert worst_s < 0.5
    assert server.complete("q" * 3_000_000).status_code == 400


def test_a_dead_engine_is_an_error_for_all_and_not_ready(serve) -> None:
    server = serve(make_engine(say("x", end=None)))
    runner = server.engine.runner
    runner.step_s = 0.005
    with server.client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}) as stream:
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
    server = serve(make_engine(say("x", end=None), max_num_seqs=1, num_blocks=200))
    runner = server.engine.runner
    runner.step_s = 0.002
    body = {"prompt": "abc", "max_tokens": 400, "stream": stream}
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
    body = {"prompt": "abcdefgh", "stream": True}
    with server.client.stream("POST", "/v1/completions", json=body, headers=headers) as first:
        lines = first.iter_lines()
        next(lines)
        with httpx.Client(base_url=server.url, headers=headers) as other:
            with other.stream("POST", "/v1/completions", json=body) as second:
                rest = second.iter_lines()
                next(rest)
                first.close()
                text = [json.loads(line[6:])["choices"][0]["text"] for line in rest if line.startswith("data: {")]
            assert "a" + "".join(text) == "abcdefgh"
            assert second.headers["x-request-id"] == "twin"
            assert other.post("/v1/completions", json={"prompt": "ab"}).json()["choices"][0]["text"] == "ab"
    wait_until(lambda: is_idle(server), "the engine to be idle")


def test_a_silent_stream_is_kept_alive_by_comments(serve) -> None:
    server = serve(make_engine(echo), keep_alive_s=0.05)
    server.engine.runner.gate.clear()
    threading.Timer(0.3, server.engine.runner.gate.set).start()
    response = server.complete("abc", stream=True)
    assert response.text.count(": keep-alive\n\n") >= 2
    assert response.text.index(": keep-alive") < response.text.index("data: ")
    assert response.text.endswith("data: [DONE]\n\n")


def test_draining_finishes_what_is_open_and_refuses_the_rest(serve) -> None:
    server = serve(make_engine(echo))
    server.engine.runner.step_s = 0.01
    with (
        httpx.Client(base_url=server.url) as kept,
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
    server = serve(make_engine(say("x", end=None), model_context=100_000, num_blocks=40_000), drain_timeout_s=0.1)
    server.engine.runner.step_s = 0.005
    whole: list[httpx.Response] = []
    body = {"prompt": "a", "max_tokens": 90_000}
    waiting = threading.Thread(target=lambda: whole.append(httpx.post(f"{server.url}/v1/completions", json=body)))
    waiting.start()
    with server.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        wait_until(lambda: len(server.state.live) == 2, "both requests")
        server.server.should_exit = True
        rest = [line for line in lines if line]
    assert json.loads(rest[-1][6:])["error"]["code"] == "server_closing"
    waiting.join(10)
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


def test_a_client_that_left_is_logged_as_gone(serve) -> None:
    stream = io.StringIO()
    server = serve(make_engine(say("x", end=None)), log_stream=stream)
    server.engine.runner.step_s = 0.005
    with open_raw(server, {"prompt": "a", "stream": True, "max_tokens": 400}) as connection:
        assert connection.recv(10)
    wait_until(lambda: stream.getvalue(), "the line")
    assert json.loads(stream.getvalue())["status"] == 499


def test_the_live_table_shows_what_is_under_way(serve) -> None:
    server = serve(make_engine(say("x", end=None)), keys=KEYS)
    server.engine.runner.step_s = 0.005
    body = {"prompt": "abc", "stream": True, "n": 2, "max_tokens": 300}
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
    assert row["age_ms"] >= row["ttft_ms"] > 0
    wait_until(lambda: is_idle(server), "the engine to be idle")
