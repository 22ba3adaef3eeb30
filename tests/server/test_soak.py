"""A short form of the soak: mixed load, clients that leave, malformed requests; and a load with figures."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from live_server import wait_until
from scripted import make_engine, say

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import soak_server


def test_nothing_is_left_behind_by_a_short_soak(serve) -> None:
    server = serve(make_engine(say("é🦀x", end=None), model_context=2048, num_blocks=400, max_num_seqs=6))
    server.engine.runner.step_s = 0.001
    findings, _ = asyncio.run(soak_server.soak(server.url, 3.0, max_tokens=12))
    assert findings.problems == []
    assert sum(findings.counts.values()) >= 2 * soak_server.NUM_CLIENTS
    wait_until(lambda: server.engine.stats().num_unfinished == 0, "the engine to be idle")
    assert server.engine.stats().scheduler.kv_usage == 0.0


def test_a_load_with_the_load_generator_has_its_figures(serve) -> None:
    from pelton.server.load.options import LoadOptions
    from pelton.server.load.report import summarize
    from pelton.server.load.run import run_load

    server = serve(make_engine(say("x", end=None), model_context=2048, num_blocks=4000))
    server.engine.runner.step_s = 0.001
    # Every request is within a limit of hours and none within one of nothing, however slow the machine is.
    for rate, slo_ms, good_share in ((None, 1e7, 1.0), (200.0, 0.0, 0.0)):
        options = LoadOptions(
            url=f"{server.url}/v1",
            num_requests=20,
            concurrency=5,
            rate=rate,
            prompt_tokens="10",
            output_tokens="5-9",
            num_warmup=1,
            slo_ttft_ms=slo_ms,
            slo_tpot_ms=slo_ms,
        )
        finished: list[int] = []
        load = asyncio.run(run_load(options, None, lambda done, total, f=finished: f.append(done)))
        summary = summarize(load, options)
        assert (summary.num_requests, summary.num_failed, summary.errors) == (20, 0, {})
        assert finished == list(range(1, 21))
        assert load.model == "tiny"
        assert 20 * 5 <= summary.output_tokens <= 20 * 9
        assert summary.ttft_ms.p50 > 0
        assert summary.good_share == good_share
