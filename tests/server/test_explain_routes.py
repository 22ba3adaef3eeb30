"""/v1/explain and /v1/requests/{id}/explain of a scripted engine."""

from __future__ import annotations

import pytest
from live_server import wait_until
from scripted import echo, make_engine

from pelton.core.request import Request
from pelton.server.auth import ApiKeys


def test_a_request_is_explained_by_any_of_its_ids(serve) -> None:
    server = serve(make_engine(echo))
    response = server.complete("abcdef")
    for name in (response.json()["id"], response.headers["x-request-id"]):
        found = server.client.get(f"/v1/requests/{name}/explain").json()
        assert found["subject"] == "request"
        assert [stage["name"] for stage in found["stages"]][:2] == ["tokens", "queue"]
        assert found["verdicts"]
        assert "7 prompt tokens, 7 new tokens" in found["text"]


def test_an_unfinished_request_is_explained_too(serve) -> None:
    def choose(request: Request) -> int:
        if len(request.output_token_ids) == 5:
            engine.runner.gate.clear()  # the next step waits
        return ord("x")

    engine = make_engine(choose)
    server = serve(engine)
    body = {"prompt": "ab", "stream": True, "max_tokens": 50}
    try:
        with server.client.stream("POST", "/v1/completions", json=body, headers={"x-request-id": "mine"}) as response:
            lines = response.iter_lines()
            next(lines)
            found = server.client.get("/v1/requests/mine/explain").json()
            assert "so far (decoding)" in found["text"]
    finally:
        engine.runner.gate.set()
    wait_until(lambda: len(server.state.live) == 0, "the request to end")


def test_server_explains_its_last_minutes(serve) -> None:
    server = serve(make_engine(echo))
    assert "No request ran or ended" in server.client.get("/v1/explain").json()["text"]
    server.complete("abc")
    found = server.client.get("/v1/explain?window_s=60").json()
    assert found["subject"] == "server"
    assert "request_id" not in found
    assert {"traffic", "steps", "slowest", "prefix_cache", "memory"} <= {stage["name"] for stage in found["stages"]}


@pytest.mark.parametrize("window", ["0", "-1", "nan", "x", "1e9"])
def test_bad_window_is_refused(serve, window: str) -> None:
    server = serve(make_engine(echo))
    response = server.client.get("/v1/explain", params={"window_s": window})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("window_s is ")


def test_unknown_request_is_one_line_and_keys_are_asked_for(serve) -> None:
    server = serve(make_engine(echo), keys=ApiKeys.from_lines(["alice:secret-of-alice"]))
    assert server.client.get("/v1/explain").status_code == 401
    response = server.client.get("/v1/requests/nobody/explain", headers={"x-api-key": "secret-of-alice"})
    assert response.status_code == 404
    assert response.json()["error"]["message"].startswith("request 'nobody' is not known: ")
