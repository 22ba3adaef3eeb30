"""`AsyncEngine` when things go wrong: a failing request, a dead engine, too many requests, no time left."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from pelton.core.errors import ContextLengthError, EngineDeadError, EngineOverloadedError, InvalidParameterError
from pelton.core.request_options import RequestOptions
from pelton.core.sampling_params import SamplingParams


def test_exception_in_one_request_ends_that_one_only(kit) -> None:
    """The model raises at token 3 of one request; the other in the same batch finishes."""

    def choose(request) -> int:
        if request.prompt_token_ids[-1] == ord("b") and len(request.output_token_ids) == 3:
            raise RuntimeError("no token")
        return 65 + len(request.output_token_ids)

    async def test() -> None:
        async with kit.make_async_engine(choose) as engine:
            params = SamplingParams(max_tokens=6)
            bad, good = engine.generate("b", params), engine.generate("g", params)
            await bad.start()
            outputs, result = await asyncio.gather(kit.read(bad), good.get_result())
            assert "".join(o.text_delta for o in outputs) == "ABC"
            assert outputs[-1].finish_reason == "error"
            assert "RuntimeError: no token" in outputs[-1].error
            assert outputs[-1].result.choices[0].error == outputs[-1].error
            assert (result.text, result.finish_reason) == ("ABCDEF", "length")
            assert engine.is_ready
            kit.assert_idle(engine)

    kit.run(test)


def test_death_of_the_engine_thread_reaches_every_waiting_and_later_call(kit) -> None:
    async def test() -> None:
        options = {"max_num_seqs": 2, "model_context": 100_000, "num_blocks": 60_000}
        async with kit.make_async_engine(lambda request: 65, **options) as engine:
            engine._require_loaded().parts.runner.on_step = lambda: threading.Event().wait(0.005)
            waiting = [asyncio.ensure_future(engine.generate("x").get_result()) for _ in range(4)]
            await kit.wait_until(lambda: engine.stats().num_unfinished == 4 or any(w.done() for w in waiting))
            kit.get_core(engine).scheduler.schedule = lambda: 1 / 0
            results = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(r) for r in results] == [EngineDeadError] * 4
            assert all("ZeroDivisionError" in str(r) for r in results)
            assert not engine.is_ready
            for _ in range(2):
                with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
                    await engine.generate("x").start()

    kit.run(test)


def test_overloaded_engine_refuses_at_once_and_says_when_to_come_back(kit) -> None:
    gate = threading.Semaphore(0)

    async def test() -> None:
        options = {"max_num_seqs": 1, "max_queued_requests": 2, "max_queued_tokens": 20}
        async with kit.make_async_engine([65] * 100, **options) as engine:
            engine._require_loaded().parts.runner.on_step = lambda: gate.acquire(timeout=120)
            params = SamplingParams(max_tokens=2)
            accepted = [engine.generate("x", params)]
            await accepted[0].start()
            await kit.wait_until(lambda: engine._require_loaded().parts.runner.num_steps == 1)
            # BOS and three bytes each: two are allowed, whatever their length while the queue is empty.
            for prompt in ("abc", "abc"):
                accepted.append(await engine.generate(prompt, params).start())
            with pytest.raises(
                EngineOverloadedError, match=r"requests with this request would be 3; .* at most 2"
            ) as e:
                await engine.generate("abc", params).start()
            assert 0 < e.value.retry_after_s <= 600
            await accepted.pop().aclose()
            gate.release(100)
            assert [(await stream.get_result()).text for stream in accepted] == ["AA", "AA"]
            kit.assert_idle(engine)

    kit.run(test)


def test_queued_tokens_are_limited_but_an_empty_queue_takes_any_prompt(kit) -> None:
    gate = threading.Semaphore(0)

    async def test() -> None:
        async with kit.make_async_engine([65] * 100, max_num_seqs=1, max_queued_tokens=20) as engine:
            engine._require_loaded().parts.runner.on_step = lambda: gate.acquire(timeout=120)
            params = SamplingParams(max_tokens=2)
            running = await engine.generate("x" * 30, params).start()
            await kit.wait_until(lambda: engine._require_loaded().parts.runner.num_steps == 1)
            long = await engine.generate("x" * 40, params).start()
            with pytest.raises(EngineOverloadedError, match=r"tokens with this request would be 42; .* at most 20"):
                await engine.generate("", params).start()
            gate.release(100)
            assert [(await stream.get_result()).text for stream in (running, long)] == ["AA", "AA"]

    kit.run(test)


def test_request_whose_time_is_over_ends_with_what_it_has_and_says_so(kit, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0

    def step() -> None:
        nonlocal now_s
        now_s += 0.005

    monkeypatch.setattr(time, "perf_counter", lambda: now_s)

    async def test() -> None:
        async with kit.make_async_engine([65] * 1000, model_context=1000, num_blocks=300) as engine:
            engine._require_loaded().parts.runner.on_step = step
            stream = await engine.generate("x", None, RequestOptions(timeout_s=0.1)).start()
            late, whole = await asyncio.gather(
                stream.get_result(), engine.generate("x", SamplingParams(max_tokens=40)).get_result()
            )
            assert late.finish_reason == "abort"
            assert late.choices[0].error == "not finished after timeout_s = 0.1 s"
            assert late.text == "A" * late.usage.completion_tokens
            assert 19 <= late.usage.completion_tokens <= 21
            assert whole.text == "A" * 40
            kit.assert_idle(engine)

    kit.run(test)


@pytest.mark.parametrize(
    "field",
    [{"timeout_s": 0}, {"timeout_s": float("nan")}, {"priority": 1.5}, {"tenant": 3}, {"request_id": "x" * 600}],
)
def test_options_of_a_request_are_checked(field: dict) -> None:
    with pytest.raises(InvalidParameterError, match=next(iter(field))):
        RequestOptions(**field)


def test_properties_of_an_engine_that_was_not_started_say_so(kit) -> None:
    engine = kit.make_async_engine([65])
    assert not engine.is_ready
    with pytest.raises(EngineDeadError, match="not been started"):
        _ = engine.context_length
    assert engine.stats().num_steps == 0
    engine.close_now()


def test_text_that_cannot_fit_is_refused_before_it_is_tokenised(kit) -> None:
    """The least number of tokens of the fake vocabulary is a third of the bytes."""

    class NeverTokenizer(kit.make_tokenizer):
        def encode(self, text: str, **options: bool) -> list[int]:
            raise AssertionError("tokenised")

    async def test() -> None:
        async with kit.make_async_engine([65], tokenizer=NeverTokenizer(), model_context=10) as engine:
            message = r"least possible number of tokens of prompt is 10; allowed: at most 9"
            with pytest.raises(ContextLengthError, match=message):
                await engine.generate("x" * 30).start()

    kit.run(test)
