"""The load generator: lengths, plans, figures and the picture, by hand-computed values."""

from __future__ import annotations

import asyncio
import random
import statistics
import xml.etree.ElementTree as ElementTree

import pytest

from pelton.core.errors import InvalidParameterError
from pelton.server.load.client import RequestTrace, Target, stream_request
from pelton.server.load.lengths import Lengths
from pelton.server.load.options import LoadOptions
from pelton.server.load.picture import draw
from pelton.server.load.report import summarize
from pelton.server.load.run import LoadTraces, make_body, plan_requests


def test_lengths_are_read_as_written() -> None:
    source = random.Random(1)
    assert {Lengths.parse("128", "x").draw(source) for _ in range(20)} == {128}
    assert {Lengths.parse("3-5", "x").draw(source) for _ in range(200)} == {3, 4, 5}
    drawn = [Lengths.parse("200~0.5", "x").draw(source) for _ in range(4000)]
    assert statistics.median(drawn) == pytest.approx(200, rel=0.05)
    # A log-normal's mean is its median times exp(sigma^2 / 2).
    assert statistics.mean(drawn) == pytest.approx(200 * 1.1331, rel=0.05)


@pytest.mark.parametrize("text", ["", "0", "5-3", "-1", "1.5", "10~", "10~x", "0~1", "99999999", "1_0"])
def test_other_lengths_are_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidParameterError, match="output_tokens"):
        LoadOptions(output_tokens=text)


def test_plans_repeat_and_share_the_prefix_they_should() -> None:
    options = LoadOptions(num_requests=10, prompt_tokens="40", shared_prefix=0.5, rate=100.0)
    first, again = plan_requests(options), plan_requests(options)
    assert first == again
    prompts = [request.prompt.split() for request in first]
    assert all(len(words) == 40 for words in prompts)
    assert all(words[:20] == prompts[0][:20] for words in prompts)
    assert len({" ".join(words[20:]) for words in prompts}) == 10
    times = [request.send_s for request in first]
    assert times == sorted(times)
    assert times[0] == 0.0


def test_poisson_gaps_have_the_mean_of_the_rate() -> None:
    planned = plan_requests(LoadOptions(num_requests=4000, rate=50.0, prompt_tokens="1"))
    assert planned[-1].send_s == pytest.approx(4000 / 50.0, rel=0.06)


def test_bodies_ask_for_what_the_options_say() -> None:
    options = LoadOptions(endpoint="completions", use_ignore_eos=False, output_tokens="7", prompt_tokens="2")
    body = make_body(options, "m", plan_requests(options)[0])
    assert (body["model"], body["max_tokens"], body["stream"]) == ("m", 7, True)
    assert "ignore_eos" not in body
    assert len(body["prompt"].split()) == 2


def make_trace(start_s: float, times_s: list[float], num_tokens: int, error: str | None = None) -> RequestTrace:
    end_s = times_s[-1] if times_s else start_s + 1.0
    return RequestTrace(start_s, end_s, times_s, 10, num_tokens, 4, error)


def test_figures_are_those_of_the_traces() -> None:
    options = LoadOptions(slo_ttft_ms=150.0, slo_tpot_ms=60.0)
    traces = (
        make_trace(0.0, [0.1, 0.15, 0.2], 3),  # TTFT 100 ms, TPOT 50 ms
        make_trace(0.0, [0.2, 0.25, 0.3], 3),  # TTFT 200 ms: too late
        make_trace(0.5, [0.6, 0.8], 2),  # TPOT 200 ms: too slow
        make_trace(0.0, [], 0, "OSError: gone"),
    )
    summary = summarize(LoadTraces(traces, 2.0, "m"), options)
    assert (summary.num_requests, summary.num_failed) == (4, 1)
    assert (summary.prompt_tokens, summary.output_tokens, summary.cached_tokens) == (30, 8, 12)
    assert summary.output_tokens_per_s == 4.0
    assert summary.requests_per_s == 1.5
    assert summary.goodput_per_s == 0.5
    assert summary.good_share == 0.25
    assert summary.ttft_ms.p50 == pytest.approx(100.0)
    assert summary.itl_ms.p50 == pytest.approx(50.0)
    assert summary.tpot_ms.mean == pytest.approx(100.0)
    assert summary.errors == {"OSError: gone": 1}


def test_the_picture_is_well_formed_and_has_a_bar_per_phase() -> None:
    traces = (make_trace(0.0, [0.1, 0.2], 2), make_trace(0.1, [], 0, "failed <&>"))
    load = LoadTraces(traces, 1.0, "m")
    root = ElementTree.fromstring(draw(load, summarize(load, LoadOptions()), "a <title>"))
    colors = [rect.get("fill") for rect in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert colors.count("#bbbbbb") == 1
    assert colors.count("#1e5fb3") == 1
    assert colors.count("#b3361e") == 1


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://h:99999", "http://u:p@h/v1"])
def test_urls_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(InvalidParameterError, match="url"):
        Target.parse(url)


def test_urls_are_taken_apart() -> None:
    assert Target.parse("http://localhost:8080/v1/") == Target("localhost", 8080, "/v1", None)
    assert Target.parse("http://[::1]:1/x").host == "::1"
    assert Target.parse("https://example.org").port == 443


def test_a_server_that_hangs_up_is_named_and_not_a_failed_conversion() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await writer.drain()
        writer.close()

    async def ask() -> RequestTrace:
        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await stream_request(Target.parse(f"http://127.0.0.1:{port}/v1"), "/completions", {}, {}, 10.0)

    assert asyncio.run(ask()).error == "the server closed the connection inside its answer"
