"""Traces as `AsyncEngine` and `LLM` keep them: sends, ends of all kinds, requests of a batch, the load of the CPUs."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from pelton.core.errors import EngineDeadError
from pelton.core.request_options import RequestOptions
from pelton.core.sampling_params import SamplingParams
from pelton.core.trace import WaitCause
from pelton.engine.cpu_load import read_busy_ticks, read_load, read_wait_s

STAT = b"""cpu  1000 1 1 1 1 1 1 1 0 0
cpu0 10 2 30 4000 500 6 7 8 9 9
cpu1 1 0 1 100 0 0 0 0 0 0
cpu12 100 0 0 100 0 0
intr 12345 cpu0
ctxt 99
"""


def test_sends_say_how_long_the_reader_took(kit) -> None:
    async def test() -> None:
        async with kit.make_async_engine([65] * 20) as engine:
            stream = engine.generate("abc", SamplingParams(max_tokens=4), RequestOptions(request_id="r"))
            times = []
            async for _ in stream:
                start_s = time.perf_counter()
                await asyncio.sleep(0.01)
                times.append((start_s, time.perf_counter()))
            trace = engine.traces.find_request("r")
            assert trace.is_finished
            assert len(trace.sends) == len(times)
            for send, (start_s, end_s) in zip(trace.sends, times, strict=True):
                assert send.taken_s <= start_s < end_s <= send.done_s

    kit.run(test)


def test_a_reader_that_leaves_has_its_last_send(kit) -> None:
    async def test() -> None:
        gate = threading.Semaphore(1)
        async with kit.make_async_engine([65] * 100) as engine:
            await engine.start()
            engine._require_loaded().parts.runner.on_step = lambda: gate.acquire(timeout=120)
            async with engine.generate("abc", None, RequestOptions(request_id="r")) as stream:
                await anext(stream)
                trace = engine.traces.find_request("r")
            gate.release(100)
            await kit.wait_until(lambda: trace.is_finished)
            assert trace.finish_reason == "abort"
            assert len(trace.sends) == 1

    kit.run(test)


def test_traces_end_when_the_engine_is_closed(kit) -> None:
    async def test() -> None:
        engine = kit.make_async_engine([65] * 100)
        stream = engine.generate("abc", SamplingParams(max_tokens=90), RequestOptions(request_id="r"))
        await anext(stream)
        trace = engine.traces.find_request("r")
        await engine.close()
        assert trace.is_finished
        assert engine.traces.list_live() == []
        await stream.aclose()

    kit.run(test)


def test_traces_end_when_the_engine_dies(kit) -> None:
    async def test() -> None:
        engine = kit.make_async_engine([65] * 100)
        await engine.start()
        engine._require_loaded().parts.runner.fail_at = {2: SystemExit("scripted death")}
        with pytest.raises(EngineDeadError):
            await kit.read(engine.generate("abc", None, RequestOptions(request_id="r")))
        trace = engine.traces.find_request("r")
        await kit.wait_until(lambda: trace.is_finished)
        assert (trace.finish_reason, trace.num_output_tokens) == ("error", 2)
        await engine.close()

    kit.run(test)


def test_an_interrupted_call_of_llm_ends_its_trace(kit) -> None:
    llm = kit.make_llm([65] * 100)
    stream = llm.stream("abc")
    next(stream)
    next(stream)
    (trace,) = llm.traces.list_live()
    stream.close()
    assert (trace.state, trace.finish_reason) == ("finished", "abort")
    assert len(trace.sends) == 1  # the first one; the second was never given back


def test_prompts_of_a_batch_that_are_not_handed_over_yet_wait_for_seats(kit) -> None:
    with kit.make_llm([*b"abcdef", kit.EOS], max_num_seqs=1) as llm:
        results = llm.generate(["first", "second", "third"])
        traces = llm.traces.list_finished()
    for trace, result in zip(traces, results, strict=True):
        waited_s = sum(wait.end_s - wait.start_s for wait in trace.waits if wait.end_s <= trace.first_scheduled_s)
        assert waited_s * 1e3 == pytest.approx(result.timings.queue_ms)
        assert trace.request_id == result.request_id
        assert trace.tokenize_s * 1e3 == result.timings.tokenize_ms
    causes = [[wait.cause for wait in trace.waits] for trace in traces]
    assert WaitCause.SEATS not in causes[0]
    assert causes[1][0] == causes[2][0] == WaitCause.SEATS


def test_busy_ticks_are_those_of_the_cpus_asked_for_without_idle_and_guests() -> None:
    assert read_busy_ticks(STAT, {0}) == 10 + 2 + 30 + 6 + 7 + 8
    assert read_busy_ticks(STAT, {1}) == 2
    assert read_busy_ticks(STAT, {0, 1, 12}) == 63 + 2 + 100
    assert read_busy_ticks(STAT, {2}) == 0
    with pytest.raises(ValueError, match="nonsense"):
        read_busy_ticks(b"cpu0 nonsense 1 2", {0})


def test_waits_of_threads_are_added_up(tmp_path: Path) -> None:
    for name, text in (("1", "123 2000000000 7\n"), ("2", "5 500000000 1\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(text)
    assert read_wait_s(str(tmp_path)) == 2.5
    (tmp_path / "3").mkdir()  # a thread that has ended meanwhile
    assert read_wait_s(str(tmp_path)) == 2.5
    (tmp_path / "3" / "schedstat").write_text("nonsense")
    assert read_wait_s(str(tmp_path)) is None


def test_a_system_that_does_not_tell_has_no_waits(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    assert read_wait_s(str(tmp_path)) is None
    assert read_wait_s(str(tmp_path / "nothing")) is None


def test_the_load_is_sampled_while_steps_are_made(kit) -> None:
    if read_load() is None:
        pytest.skip("this system has no /proc/stat")
    with kit.make_llm([65] * 20) as llm:
        llm.generate("abc", SamplingParams(max_tokens=2))
        samples = llm.traces.list_samples()
    assert len(samples) >= 1
    assert samples[0].num_cpus >= 1
    assert samples[0].busy_s > 0
    assert samples[0].own_s > 0
