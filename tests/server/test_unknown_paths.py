"""Paths that do not exist answer in the shape of the protocol they belong to; HEAD answers for load balancers."""

from __future__ import annotations

import pytest
from scripted import echo, make_engine

from pelton.server.auth import ApiKeys

KEYS = ApiKeys.from_lines(["alice:secret-of-alice"])


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_head_answers_as_get_without_a_body(serve, path: str) -> None:
    server = serve(make_engine(echo), keys=KEYS)
    got, head = server.client.get(path), server.client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]
    server.state.is_draining = True
    assert (server.client.head("/ready").status_code, server.client.head("/health").status_code) == (503, 200)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/embed", {"error": "Not Found"}),
        ("/api", {"error": "Not Found"}),
        ("/v1/messages/batches", {"type": "error", "error": {"type": "not_found_error", "message": "Not Found"}}),
    ],
)
def test_unknown_paths_below_a_protocol_answer_in_its_shape(serve, path: str, expected: dict[str, object]) -> None:
    server = serve(make_engine(echo))
    for method in ("GET", "POST"):
        response = server.client.request(method, path)
        assert (response.status_code, response.json()) == (404, expected)
    for other in ("/apis/embed", "/v1/messages2", "/nope"):
        assert server.client.get(other).json()["error"]["code"] == "not_found", other
