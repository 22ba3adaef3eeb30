"""/metrics: names, values after known requests, and the dashboard that shows them."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import httpx
import pytest
from live_server import HANG_S, LiveServer, wait_until
from scripted import ENDLESS, echo, make_engine, say

from pelton.core.request import Request

PARTS = ("prefill", "decode", "sample", "python")
DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana-dashboard.json"


def read_samples(server: LiveServer) -> dict[str, float]:
    """All samples, by name and labels as they are written."""
    response = server.client.get("/metrics")
    assert response.status_code == 200
    lines = [line for line in response.text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_counts_are_those_of_the_requests_made(serve) -> None:
    server = serve(make_engine(echo))
    server.complete("abc")  # 4 prompt tokens, 4 new ones
    server.complete("abcde", max_tokens=2, n=2, stream=True)  # 6 and 2 x 2
    server.complete(temperature=-1)
    server.complete("a" * 10_000)
    server.client.get("/nope")
    wait_until(lambda: server.engine.stats().num_unfinished == 0, "the engine to be idle")
    samples = read_samples(server)
    label = '{model_name="tiny"}'
    assert samples[f"pelton:prompt_tokens_total{label}"] == 10
    assert samples[f"pelton:generation_tokens_total{label}"] == 8
    assert samples['pelton:request_success_total{finished_reason="stop",model_name="tiny"}'] == 1
    assert samples['pelton:request_success_total{finished_reason="length",model_name="tiny"}'] == 2
    assert samples['pelton:http_errors_total{code="invalid_value",status="400"}'] == 1
    assert samples['pelton:http_errors_total{code="context_length_exceeded",status="400"}'] == 1
    assert not any("abort" in name for name in samples), "a refused request has no choices"
    assert samples['pelton:http_errors_total{code="not_found",status="404"}'] == 1
    for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds"):
        assert samples[f"pelton:{name}_count{label}"] == 2
    assert samples[f"pelton:request_prompt_tokens_sum{label}"] == 10
    assert samples[f"pelton:request_params_n_sum{label}"] == 3
    # One request of 4 tokens, two choices of 2: that many gaps.
    assert samples[f"pelton:inter_token_latency_seconds_count{label}"] == 3 + 2
    assert samples[f"pelton:num_requests_running{label}"] == 0
    assert samples[f"pelton:kv_cache_usage_perc{label}"] == 0
    assert samples[f"pelton:num_preemptions_total{label}"] == 0
    assert samples[f"pelton:prefix_cache_queries_total{label}"] >= 10
    parts = {part: samples[f'pelton:step_seconds_total{{model_name="tiny",part="{part}"}}'] for part in PARTS}
    assert parts["python"] > 0
    # The scripted model takes no time.
    assert parts["prefill"] == parts["decode"] == parts["sample"] == 0
    assert samples['pelton:request_wait_seconds_total{cause="step",model_name="tiny"}'] > 0


def test_a_client_that_left_counts_as_aborted(serve) -> None:
    server = serve(make_engine(say("x", end=None), **ENDLESS))
    server.engine.runner.step_s = 0.003
    body = {"prompt": "a", "stream": True, "max_tokens": 90_000}
    with server.client.stream("POST", "/v1/completions", json=body) as stream:
        lines = stream.iter_lines()  # kept: throwing it away closes the stream
        next(lines)
        wait_until(lambda: read_by_other_client(server)["pelton:num_requests_running"] == 1, "a running sequence")
    key = 'pelton:request_success_total{finished_reason="abort",model_name="tiny"}'
    wait_until(lambda: read_samples(server).get(key) == 1, "the abort to be counted")


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_the_engine_fails_counts_as_error(serve, stream: bool) -> None:
    def fail(request: Request) -> int:
        raise RuntimeError("scripted failure")

    server = serve(make_engine(fail))
    server.complete("bad", stream=stream, n=2)
    samples = read_samples(server)
    found = {name: value for name, value in samples.items() if name.startswith("pelton:request_success_total")}
    assert found == {'pelton:request_success_total{finished_reason="error",model_name="tiny"}': 2}


def test_gauges_of_a_first_step_are_there_while_it_runs(serve) -> None:
    server = serve(make_engine(echo, max_num_seqs=1))
    runner = server.engine.runner
    runner.gate.clear()
    threads = [threading.Thread(target=server.complete, args=("abc",)) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
            wait_until(lambda: read_by_other_client(server)["pelton:num_unfinished_requests"] >= 1, "the first step")
        found = read_by_other_client(server)
        assert found["pelton:num_requests_running"] == 1
        assert found["pelton:num_steps_total"] == 0
    finally:
        runner.gate.set()
        for thread in threads:
            thread.join()
    wait_until(lambda: read_by_other_client(server)["pelton:num_unfinished_requests"] == 0, "the end")


def read_by_other_client(server: LiveServer) -> dict[str, float]:
    text = httpx.get(f"{server.url}/metrics", timeout=HANG_S).text
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {line.split("{")[0].split(" ")[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def test_every_metric_of_the_dashboard_exists(serve) -> None:
    server = serve(make_engine(echo))
    server.complete("abc")
    server.complete(temperature=-1)
    wait_until(lambda: server.engine.stats().num_unfinished == 0, "the engine to be idle")
    names = {name.split("{")[0] for name in read_samples(server)}
    dashboard = json.loads(DASHBOARD.read_text())
    shown = set(re.findall(r"pelton:\w+", json.dumps(dashboard)))
    assert len(shown) > 12
    assert shown <= names, shown - names


def test_help_says_what_every_metric_means(echo_server: LiveServer) -> None:
    echo_server.complete("a")
    text = echo_server.client.get("/metrics").text
    names = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    helped = {name for name, words in re.findall(r"^# HELP (\S+) (.+)$", text, re.MULTILINE) if words.endswith(".")}
    assert names == helped


@pytest.mark.parametrize(
    "stem", ["num_requests_waiting_by_reason", "kv_cache_usage_perc", "prompt_tokens_cached_total"]
)
def test_names_are_vllms_with_another_prefix(echo_server: LiveServer, stem: str) -> None:
    echo_server.complete("a")
    assert f"pelton:{stem}{{" in echo_server.client.get("/metrics").text
