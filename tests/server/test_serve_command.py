"""`pelton serve` and `pelton bench serve` as commands: what they print, what they refuse, how they end."""

from __future__ import annotations

import http.server
import json
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import httpx
import pytest
from live_server import HANG_S, LiveServer, wait_until
from scripted import echo, make_engine

from pelton.cli.main import main
from pelton.core.errors import ConfigError
from pelton.server.tracing import make_tracer

PROGRAM = """
    import asyncio, sys
    sys.path[:0] = {paths!r}
    from scripted import make_engine, say
    from pelton.cli import serve as command
    engine = make_engine(say("x", end=None), model_context=100_000, num_blocks=40_000)
    engine.runner.step_s = 0.01
    command.open_async_engine = lambda model, config: asyncio.run(engine.start())
    from pelton.cli.main import main
    sys.exit(main(["serve", "--port", "0", *sys.argv[1:]]))
"""


def start_serve(*args: str, env: dict[str, str] | None = None) -> tuple[subprocess.Popen[str], str, list[str]]:
    """Run the command with a scripted engine; returns the process, its URL and what it printed before that."""
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "src")]
    code = textwrap.dedent(PROGRAM).format(paths=paths)
    process = subprocess.Popen(
        [sys.executable, "-c", code, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line.strip())
        if "/v1" in line:
            return process, line.split(" at ")[1].strip().removesuffix("/v1"), lines
    raise AssertionError(f"the server did not start: {lines}")


def wait_ready(url: str) -> None:
    with httpx.Client(base_url=url, timeout=HANG_S) as client:
        assert client.get("/ready").status_code == 200


def test_sigterm_finishes_open_streams_and_exits_with_zero() -> None:
    process, url, lines = start_serve("--host", "0.0.0.0")
    try:
        url = url.replace("0.0.0.0", "127.0.0.1")
        assert any("warning" in line and "no API key" in line for line in lines)
        # 40,000 blocks of 4 tokens, contexts of 100,000.
        assert any("KV cache: 160,000 tokens" in line and "1 request at once" in line for line in lines)
        wait_ready(url)
        body = {"prompt": "a", "max_tokens": 40, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=HANG_S) as stream:
            rest = stream.iter_lines()
            next(rest)
            process.send_signal(signal.SIGTERM)
            seen = [line for line in rest if line]
        assert seen[-1] == "data: [DONE]"
        out, _ = process.communicate(timeout=HANG_S)
        assert process.returncode == 0
        logged = [json.loads(line) for line in out.splitlines()]
        assert [line["path"] for line in logged] == ["/ready", "/v1/completions"]
    finally:
        process.kill()
        process.wait()


def test_a_draining_server_says_so_to_new_connections() -> None:
    process, url, _ = start_serve()
    try:
        wait_ready(url)
        body = {"prompt": "a", "max_tokens": 90_000, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body) as stream:
            rest = stream.iter_lines()  # kept: the stream is closed with it
            next(rest)
            process.send_signal(signal.SIGTERM)
            wait_until(lambda: httpx.get(f"{url}/ready").status_code == 503, "the signal to be seen")
            assert httpx.get(f"{url}/health").status_code == 200
            refused = httpx.post(f"{url}/v1/completions", json=body)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_closing")
        process.communicate(timeout=20)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


def test_sigterm_cuts_streams_that_take_too_long_and_exits_with_zero() -> None:
    process, url, lines = start_serve("--drain-timeout-s", "0.1", "--served-model-name", "mine")
    try:
        assert not any("warning" in line for line in lines)
        wait_ready(url)
        body = {"prompt": "a", "max_tokens": 90_000, "stream": True, "model": "mine"}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=HANG_S) as stream:
            rest = stream.iter_lines()
            next(rest)
            process.send_signal(signal.SIGTERM)
            seen = [line for line in rest if line]
        assert json.loads(seen[-1][6:])["error"]["code"] == "server_closing"
        process.communicate(timeout=HANG_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--port", "70000"], "--port is 70000"),
        (["--ssl-certfile", "/no/such/file", "--ssl-keyfile", "/no/such/file"], "--ssl-certfile"),
        (["--max-body-bytes", "5"], "--max-body-bytes is 5"),
        (["--api-key-file", "/no/such/file"], "--api-key-file"),
        (["--host", ""], "--host is ''"),
        (["--served-model-name", "a", "--served-model-name", " "], "--served-model-name is ' '"),
        (["--cors-origins", "app.example"], "--cors-origins is 'app.example'"),
        (["--cors-origins", "https://app.example/"], "--cors-origins is 'https://app.example/'"),
        (["--otlp-endpoint", "localhost:4318"], "--otlp-endpoint is 'localhost:4318'"),
        (["-m", "/no/such/model.gguf"], "/no/such/model.gguf"),
    ],
)
def test_serve_refuses_bad_options_in_one_line(args: list[str], message: str, capsys) -> None:
    assert main(["serve", *args]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_bench_serve_reports_a_table_json_and_a_picture(serve, tmp_path: Path, capsys) -> None:
    server: LiveServer = serve(make_engine(echo))
    picture = tmp_path / "load.svg"
    args = ["bench", "serve", "--url", f"{server.url}/v1", "--num-requests", "6", "--concurrency", "2"]
    args += ["--prompt-tokens", "3-5", "--output-tokens", "4", "--endpoint", "completions"]
    assert main([*args, "--picture", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "TTFT" in out
    assert "6 requests, 0 failed" in out
    assert "goodput" in out
    assert picture.read_text().startswith("<svg")
    assert main([*args, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["summary"]["output_tokens"] == 24
    assert report["model"] == "tiny"


def test_bench_serve_says_when_there_is_no_server(capsys) -> None:
    assert main(["bench", "serve", "--url", "http://127.0.0.1:9/v1"]) == 1
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_requests_become_spans_where_an_endpoint_is_configured(serve) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    received: list[bytes] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Stay quiet."""

    collector = http.server.HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    try:
        server = serve(make_engine(echo), otlp_endpoint=f"http://127.0.0.1:{collector.server_port}/v1/traces")
        server.complete("abc")
        server.server.should_exit = True
        server.join()
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()
    assert b"POST /v1/completions" in b"".join(received)
    assert b"pelton.status" in b"".join(received)


def test_tracing_without_its_packages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match="opentelemetry-sdk"):
        make_tracer("http://127.0.0.1:1")
    assert make_tracer(None) is None


@pytest.mark.parametrize("stream", [True, False])
def test_a_second_sigint_ends_at_once_and_says_nothing(stream: bool) -> None:
    process, url, _ = start_serve()
    try:
        wait_ready(url)
        body = json.dumps({"prompt": "a", "max_tokens": 90_000, "stream": stream}).encode()
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=HANG_S) as connection:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)
            wait_until(lambda: httpx.get(f"{url}/v1/requests", timeout=HANG_S).json()["data"], "the request to run")
            process.send_signal(signal.SIGINT)
            wait_until(lambda: httpx.get(f"{url}/ready", timeout=HANG_S).status_code == 503, "the signal to be seen")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=HANG_S)
        assert process.returncode == 0
        assert err == ""
    finally:
        process.kill()
        process.wait()
