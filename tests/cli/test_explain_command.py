"""`pelton explain`: the story of a prompt, and of a server over HTTP, with one line for each thing that is missing."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from byte_model import make_config
from pelton.core.outputs import TokenLogprobs
from pelton.core.step_plan import SampledToken, StepPlan, StepResult
from pelton.insight.explain_text import WIDTH
from pelton.insight.kv_layout import KvFormat
from pelton.insight.machine_limits import Measured, ThreadLimits
from pelton.insight.machine_rates import TableMachine
from pelton.insight.model_source import make_shape
from pelton.insight.prediction import Planned
from pelton.insight.weight_formats import ModelFormats

NUM_CANDIDATES = 5


@pytest.fixture(autouse=True)
def model_and_machine(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape of the fake model, a machine that is made up, and log-probabilities from the scripted runner."""
    planned = Planned(make_shape(make_config(258, 512)), ModelFormats.make_uniform("f32"), KvFormat("f16"))
    rate = Measured(1e9, 1e9)
    limits = ThreadLimits(1, rate, 1, rate, rate, None, Measured(0.0, 0.0))
    machine = TableMachine("made-up", "made up", "a test", "cpu", limits, None, 1e9)
    monkeypatch.setattr("pelton.cli.explain.read_planned", lambda model, config: planned)
    monkeypatch.setattr("pelton.cli.explain.measure_machine", lambda planned, config: machine)
    run = cli.runner.run

    def run_with_logprobs(plan: StepPlan) -> StepResult:
        result = run(plan)
        top = tuple((72 + i, -0.5 * (i + 1)) for i in range(NUM_CANDIDATES))
        sampled = {k: SampledToken(t.token_id, TokenLogprobs(-0.5, top)) for k, t in result.sampled.items()}
        return StepResult(sampled=sampled, model_s=0.0, sample_s=0.0)

    monkeypatch.setattr(cli.runner, "run", run_with_logprobs)


def test_story_is_told_in_80_columns_without_colours(cli) -> None:
    outcome = cli.run("explain", "Hi")
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= WIDTH
    assert "\x1b" not in outcome.out
    for part in ("8 prompt tokens, 7 new tokens", "72 'H'", "60.65 %", "<- drawn", "Hello!", "Verdict: ", "Prefill"):
        assert part in outcome.out
    assert "0 tokens\n" in outcome.out, "the warm-up leaves nothing in the prefix cache"
    # The warm-up's prompt, then the one that was asked.
    assert cli.runner.prompts == ["[user]Hello.", "[user]Hi"]


def test_json_is_one_object_with_the_text_in_it(cli) -> None:
    found = json.loads(cli.run("explain", "--json", "--raw", "Hi").out)
    assert found["subject"] == "request"
    stages = {stage["name"]: stage for stage in found["stages"]}
    assert len([f for f in stages["first_token"]["facts"] if f["unit"] == "probability"]) == NUM_CANDIDATES
    assert found["verdicts"][0]["evidence"]
    assert "Verdict: " in found["text"]


def test_headings_are_bold_on_a_terminal_unless_no_color_is_set(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    for no_color in ("", "1"):
        screen = Screen()
        monkeypatch.setattr(sys, "stdout", screen)
        monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setenv("TERM", "xterm")
        cli.run("explain", "Hi")
        assert ("\x1b[1mVerdict: " in screen.getvalue()) == (no_color == "")


def test_prompt_may_be_piped_and_must_be_there(cli) -> None:
    assert "8 prompt tokens" in cli.run("explain", stdin=b"Hi\n").out
    assert "PROMPT is None; allowed: a prompt" in cli.run("explain", typed="").error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--request", "x", "Hi"], "--request is 'x'; allowed: only together with --url"),
        (["--api-key", "secret", "Hi"], "--api-key is 'set'; allowed: only together with --url"),
        (["--url", "http://localhost:1", "Hi"], "PROMPT is 'Hi'; allowed: no prompt beside --url"),
        (["--url", "localhost:8000"], "--url is 'localhost:8000'; allowed: http://HOST:PORT"),
        (["--url", "http://h:99999"], "--url is 'http://h:99999'; allowed"),
        (["--url", "http://localhost:1", "--window-s", "0"], "--window-s is 0.0; allowed"),
        (["--url", "http://localhost:1", "-m", "x"], "--model is 'x'; allowed: left out beside --url"),
        (["--url", "http://localhost:1", "--raw"], "--raw is True; allowed: left out beside --url"),
        (["--url", "http://localhost:1", "--request", ""], "--request is ''; allowed: the id of a request"),
        (["--raw", "--system", "x", "Hi"], "--system is 'x'; allowed: no --system together with --raw"),
        ([""], "prompt is ''; allowed"),
    ],
)
def test_bad_usage_is_one_line(cli, arguments: list[str], message: str) -> None:
    assert message in cli.run("explain", *arguments).error


class Answers(BaseHTTPRequestHandler):
    """Answers every GET with `answers[path]`, a status and a body, and notes path and key."""

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("authorization")))
        status, body = self.server.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


@pytest.fixture
def http() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        server.seen = []
        server.answer = (200, b"{}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def get_url(server: HTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def error_body(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "t", "param": None, "code": None}}).encode()


def test_server_is_asked_with_the_key_and_its_text_is_printed_clean(cli, http, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"subject": "server", "stages": [], "verdicts": [], "advice": [], "text": "All\x1b[2J is well\n"}
    http.answer = (200, json.dumps(answer).encode())
    assert cli.run("explain", "--url", get_url(http) + "/v1/", "--api-key", "secret").out == "All[2J is well\n"
    monkeypatch.setenv("PELTON_API_KEYS", "me:from-environment,other:key")
    assert json.loads(cli.run("explain", "--json", "--url", get_url(http), "--request", "a/b").out) == answer
    assert http.seen == [
        ("/v1/explain?window_s=300", "Bearer secret"),
        ("/v1/requests/a%2Fb/explain", "Bearer from-environment"),
    ]


@pytest.mark.parametrize(
    ("status", "body", "arguments", "message"),
    [
        (
            401,
            error_body("no API key"),
            [],
            "refuses requests without an API key; --api-key or PELTON_API_KEYS gives one",
        ),
        (401, error_body("no API key"), ["--api-key", "wrong"], "refuses the API key; --api-key gives another"),
        (
            404,
            error_body("request 'x' is not known: 256 are kept"),
            ["--request", "x"],
            "request 'x' is not known: 256",
        ),
        (404, b'{"detail":"Not Found"}', [], "has no /v1/explain: it is not a Pelton server, or an older one"),
        (
            404,
            b'{"detail":"Not Found"}',
            ["--request", "x"],
            "has no /v1/requests/x/explain: it is not a Pelton server",
        ),
        (200, b"<html>hello</html>", [], "has no /v1/explain: it is not a Pelton server"),
        (200, b'{"models": []}', [], "has no /v1/explain: it is not a Pelton server"),
        (503, error_body("the engine stopped"), [], "answered with status 503: the engine stopped"),
    ],
)
def test_what_is_missing_is_one_line(cli, http, status: int, body: bytes, arguments: list[str], message: str) -> None:
    http.answer = (status, body)
    assert message in cli.run("explain", "--url", get_url(http), *arguments).error


def test_no_server_is_one_line(cli) -> None:
    with socket.socket() as bound:  # a port that is taken, where nobody listens
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        error = cli.run("explain", "--url", url).error
    assert error.startswith(f"no server answers at {url}: ")


@pytest.mark.model
def test_real_model_is_explained(cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, with the machine measured."""
    environment = {**os.environ, "PELTON_CACHE": str(tmp_path)}
    code = "import sys; from pelton.cli.main import main; sys.exit(main())"
    arguments = ["explain", "-m", os.environ["PELTON_TEST_MODEL"], "--seed", "1", "--max-tokens", "12", "--json", "Hi"]
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    stages = {stage["name"]: stage for stage in found["stages"]}
    assert stages["decode"]["bound"] == "memory"
    assert stages["decode"]["pct_of_limit"] > 0
    assert found["verdicts"]
