"""Clients that begin to send and stop: what they are told, and that the end of the server does not wait for them."""

from __future__ import annotations

import io
import json
import socket

import pytest
from live_server import HANG_S, LiveServer, wait_until
from scripted import echo, make_engine

from pelton.core.errors import InvalidParameterError
from pelton.server.app import create_app
from pelton.server.options import ServerOptions
from pelton.server.serve import make_server

SHORT_S = 0.1
PATHS = ["/v1/completions", "/v1/messages", "/api/chat", "/generate"]


def connect(server: LiveServer, data: str) -> socket.socket:
    """Send the beginning of a request over a bare socket."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=HANG_S)
    connection.sendall(data.encode())
    return connection


def begin_body(path: str, head: str = "Content-Length: 100") -> str:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n" + ("{" if "Length" in head else "1\r\n{\r\n")


def read_to_end(connection: socket.socket) -> tuple[str, str]:
    """Head and body of an answer; the server closes the connection after it."""
    with connection:
        data = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = data.decode().partition("\r\n\r\n")
    return head, body


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("head", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_a_body_that_stops_arriving_is_answered_and_logged(serve, path: str, head: str) -> None:
    stream = io.StringIO()
    server = serve(make_engine(echo), log_stream=stream, body_timeout_s=SHORT_S)
    answer, body = read_to_end(connect(server, begin_body(path, head)))
    assert answer.startswith("HTTP/1.1 408 ")
    assert "connection: close" in answer
    error = json.loads(body)
    expected = {
        "/v1/completions": lambda: error["error"]["code"] == "body_timeout",
        "/v1/messages": lambda: (error["type"], error["error"]["type"]) == ("error", "invalid_request_error"),
        "/api/chat": lambda: isinstance(error["error"], str),
        "/generate": lambda: isinstance(error["error"], str) and "error_type" in error,
    }
    assert expected[path](), error
    assert "body-timeout-s" in body
    wait_until(lambda: "\n" in stream.getvalue(), "the line")
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert (line["path"], line["status"]) == (path, 408)
    assert "traceback" not in line


def test_a_body_in_parts_is_taken_as_long_as_they_come(serve) -> None:
    server = serve(make_engine(echo))
    data = json.dumps({"prompt": "abc"})
    connection = connect(server, f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n")
    connection.sendall(b"Connection: close\r\n\r\n")
    for character in data:
        connection.sendall(character.encode())
    answer, body = read_to_end(connection)
    assert answer.startswith("HTTP/1.1 200 ")
    assert json.loads(body)["choices"][0]["text"] == "abc"


@pytest.mark.parametrize(
    "data",
    [
        "",
        "POST /v1/comple",
        "GET /health HTTP/1.1\r\nHost: x\r\nX-Never-En",
        "GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /ready HTT",
        "POST /nope HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    ],
)
def test_a_head_that_does_not_arrive_closes_the_connection(serve, data: str) -> None:
    server = serve(make_engine(echo))
    connection = connect(server, data)
    if "\r\n\r\n" in data:
        assert connection.recv(65536).startswith(b"HTTP/1.1 ")
        connection.sendall(b"{")  # which ends uvicorn's own timer
    wait_until(lambda: len(server.server.server_state.connections) == 1, "the connection")
    server.server.slow_heads.timeout_s = SHORT_S
    wait_until(lambda: not server.server.server_state.connections, "its end")
    connection.close()


def test_a_connection_kept_between_two_requests_is_not_late(serve) -> None:
    server = serve(make_engine(echo))
    assert server.client.get("/health").status_code == 200
    for _ in range(3):  # late ones come and go, each at a look of its own
        server.server.slow_heads.timeout_s = 10 * HANG_S
        connection = connect(server, "GET /hea")
        server.server.slow_heads.timeout_s = SHORT_S
        assert read_to_end(connection) == ("", "")
    assert len(server.server.server_state.connections) == 1
    assert server.client.get("/health").status_code == 200


def test_the_option_holds_for_heads_and_bodies() -> None:
    app = create_app(make_engine(echo), ServerOptions(body_timeout_s=7.0))
    assert make_server(app, ServerOptions(body_timeout_s=7.0)).slow_heads.timeout_s == 7.0
    with pytest.raises(InvalidParameterError, match="body_timeout_s"):
        ServerOptions(body_timeout_s=0.0)


def test_a_body_that_stops_does_not_outlast_the_drain_time(serve, capfd) -> None:
    stream = io.StringIO()
    server = serve(make_engine(echo), log_stream=stream, drain_timeout_s=SHORT_S)
    connections = [connect(server, begin_body("/v1/completions")), connect(server, "POST /v1/com")]
    wait_until(lambda: len(server.server.server_state.tasks) == 1, "the request to be taken up")
    wait_until(lambda: len(server.server.server_state.connections) == 2, "both connections")
    server.server.should_exit = True
    server.join()
    answer, body = read_to_end(connections[0])
    assert answer.startswith("HTTP/1.1 503 ")
    assert json.loads(body)["error"]["code"] == "server_closing"
    assert read_to_end(connections[1]) == ("", "")
    assert [json.loads(line)["status"] for line in stream.getvalue().splitlines()] == [503]
    assert capfd.readouterr().err == ""
