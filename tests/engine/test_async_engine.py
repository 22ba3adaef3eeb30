"""`AsyncEngine`: outputs, slow and lost readers, several event loops, closing. The model is a script."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import pytest

from pelton.core.errors import ContextLengthError, EngineDeadError, InvalidParameterError
from pelton.core.request_options import RequestOptions
from pelton.core.sampling_params import SamplingParams


def test_outputs_are_those_of_the_blocking_stream(kit) -> None:
    script, params = [*"A🦀漢é!".encode(), kit.EOS], SamplingParams(seed=3, logprobs=1)
    expected = list(kit.make_llm(script).stream("abc", params))

    async def test() -> None:
        async with kit.make_async_engine(script) as engine:
            outputs = await kit.read(engine.generate("abc", params))
            assert "".join(o.text_delta for o in outputs) == "A🦀漢é!"
            assert [i for o in outputs for i in o.new_token_ids] == [i for o in expected for i in o.new_token_ids]
            assert [p for o in outputs for p in o.logprobs] == [p for o in expected for p in o.logprobs]
            assert outputs[-1].result.choices == expected[-1].result.choices
            assert outputs[-1].usage == expected[-1].usage
            assert [o.result for o in outputs[:-1]] == [None] * (len(outputs) - 1)
            kit.assert_idle(engine)

    kit.run(test)


def test_chat_and_get_result_give_the_whole_answer(kit) -> None:
    async def test() -> None:
        async with kit.make_async_engine([*b"ok", kit.EOS]) as engine:
            result = await engine.chat([{"role": "user", "content": "hey"}]).get_result()
            assert (result.text, result.prompt_token_ids) == ("ok", (kit.BOS, *b"[user]hey"))
            assert await engine.encode("hey") == (kit.BOS, *b"hey")
            assert await engine.encode_chat([{"role": "user", "content": "hey"}]) == result.prompt_token_ids
            assert await engine.decode(b"hey") == "hey"

    kit.run(test)


def test_bad_input_is_refused_by_start_and_harms_nobody(kit) -> None:

    async def test() -> None:
        async with kit.make_async_engine([65] * 100, model_context=8) as engine:
            neighbour = asyncio.ensure_future(engine.generate("x", SamplingParams(max_tokens=4)).get_result())
            bad = ["", [], [1, 999], [-1], 3, None, "half \ud800"]
            for prompt in bad[1:]:
                with pytest.raises(InvalidParameterError):
                    await engine.generate(prompt).start()
            with pytest.raises(InvalidParameterError, match="stop_token_ids is 999"):
                await engine.generate("x", SamplingParams(stop_token_ids=(999,))).start()
            with pytest.raises(ContextLengthError):
                await kit.read(engine.generate("abcdefgh"))
            with pytest.raises(InvalidParameterError, match="messages is"):
                await engine.chat([]).start()
            assert (await neighbour).text == "AAAA"
            kit.assert_idle(engine)

    kit.run(test)


def test_slow_reader_gets_everything_in_one_piece_and_slows_nobody(kit) -> None:
    def choose(request) -> int:
        return 65 + len(request.output_token_ids) % 26

    params = SamplingParams(max_tokens=100, logprobs=0)

    async def test() -> None:
        async with kit.make_async_engine(choose) as engine:
            gate = threading.Semaphore(1)
            runner = engine._require_loaded().parts.runner
            runner.on_step = lambda: gate.acquire(timeout=120)
            slow = engine.generate("s", params)
            first = await slow.__anext__()
            runner.on_step = None
            gate.release()
            fast = await asyncio.gather(*(engine.generate("f", params).get_result() for _ in range(8)))
            assert {len(r.token_ids) for r in fast} == {100}
            await kit.wait_until(lambda: engine.stats().num_unfinished == 0)
            rest = await kit.read(slow)
            assert len(rest) == 1, "what came meanwhile is one output"
            assert first.new_token_ids + rest[0].new_token_ids == fast[0].token_ids
            assert first.text_delta + rest[0].text_delta == fast[0].text == rest[0].result.text
            assert first.logprobs + rest[0].logprobs == fast[0].logprobs

    kit.run(test)


@pytest.mark.parametrize("how", ["aclose", "drop", "cancel"])
@pytest.mark.parametrize("where", ["queue", "prefill", "decode"])
def test_lost_reader_frees_blocks_within_one_step(kit, where: str, how: str) -> None:
    """The engine computes at most the step that is under way."""
    gate = threading.Semaphore(0)
    options = {"queue": {"max_num_seqs": 1}, "prefill": {"prefill_chunk": 2}, "decode": {}}[where]

    async def test() -> None:
        async with kit.make_async_engine([65] * 100, **options) as engine:
            runner = engine._require_loaded().parts.runner
            runner.on_step = lambda: gate.acquire(timeout=120)
            other = None
            if where == "queue":
                other = engine.generate("x", SamplingParams(max_tokens=3))
                await other.start()
                await kit.wait_until(lambda: runner.num_steps == 1)
            stream = engine.generate("abcdefghijkl")
            await stream.start()
            if where == "decode":
                gate.release(2)
                await kit.wait_until(lambda: runner.num_steps == 3)
            elif where == "prefill":
                gate.release()
                await kit.wait_until(lambda: runner.num_steps == 2)
            num_steps = runner.num_steps
            if how == "drop":
                del stream
                gc.collect()
            elif how == "aclose":
                await stream.aclose()
            else:
                reader = asyncio.ensure_future(kit.read(stream))
                await asyncio.sleep(0.01)
                reader.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await reader
            runner.on_step = None
            gate.release(100)
            if other is None:
                await kit.wait_until(lambda: engine.stats().num_unfinished == 0)
                assert runner.num_steps == num_steps
            else:
                assert (await other.get_result()).text == "AAA"
                assert runner.max_num_scheduled == 1
                assert runner.num_steps == 3
            kit.assert_idle(engine)

    kit.run(test)


def test_stream_closed_by_another_task_ends_for_its_reader(kit) -> None:
    gate = threading.Semaphore(0)

    async def test() -> None:
        async with kit.make_async_engine([65] * 100) as engine:
            await engine.start()
            engine._require_loaded().parts.runner.on_step = lambda: gate.acquire(timeout=120)
            stream = engine.generate("x")
            reader = asyncio.ensure_future(kit.read(stream))
            await kit.wait_until(lambda: engine._require_loaded().parts.runner.num_steps == 1)
            await stream.aclose()
            assert await reader == []
            unread = engine.generate("x")
            await unread.aclose()
            assert await kit.read(unread) == []
            gate.release(100)

    kit.run(test)


def test_twins_with_one_name_do_not_clash(kit) -> None:
    """Close the first after two tokens, use the name again at once."""

    async def test() -> None:
        async with kit.make_async_engine([*b"abcdef", kit.EOS]) as engine:
            options = RequestOptions(request_id="same")
            first, second = (engine.generate("x", None, options) for _ in range(2))
            await first.start()
            await second.start()
            await first.__anext__()
            await first.aclose()
            third = await engine.generate("x", None, options).get_result()
            outputs = await kit.read(second)
            assert "".join(o.text_delta for o in outputs) == third.text == "abcdef"
            assert {o.request_id for o in outputs} == {"same"} == {third.request_id}
            kit.assert_idle(engine)

    kit.run(test)


def test_several_event_loops_in_several_threads_share_one_engine(kit) -> None:
    engine = kit.make_async_engine(lambda r: 65 + len(r.output_token_ids))
    texts: list[str] = []

    async def ask() -> None:
        results = await asyncio.gather(
            *(engine.generate("x", SamplingParams(max_tokens=26)).get_result() for _ in range(5))
        )
        texts.extend(r.text for r in results)

    threads = [threading.Thread(target=lambda: asyncio.run(ask())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["ABCDEFGHIJKLMNOPQRSTUVWXYZ"] * 20
    kit.assert_idle(engine)
    engine.close_now()
    assert engine._require_loaded().parts.runner.is_closed


def test_idle_engine_uses_no_processor_time(kit) -> None:
    async def test() -> None:
        async with kit.make_async_engine([65, kit.EOS]) as engine:
            await engine.generate("x").get_result()
            num_steps = engine.stats().num_steps
            clock = time.pthread_getcpuclockid(engine._require_loaded().thread._thread.ident)
            before_s = -1.0
            # Not a matter of how fast anything is: a thread that waits uses nothing at all.
            while before_s != (before_s := time.clock_gettime(clock)):
                await asyncio.sleep(0.1)
            assert engine.stats().num_steps == num_steps

    kit.run(test)


def test_close_drains_or_fails_what_is_unfinished_and_refuses_what_comes(kit) -> None:
    async def test(drain: bool) -> None:
        engine = await kit.make_async_engine(lambda request: 65, model_context=100_000, num_blocks=40_000).start()
        assert engine.is_ready
        engine._require_loaded().parts.runner.on_step = lambda: time.sleep(0.002)
        params = SamplingParams(max_tokens=50 if drain else 30_000)
        streams = [engine.generate("x", params) for _ in range(3)]
        for stream in streams:
            await stream.start()
        readers = [asyncio.ensure_future(stream.get_result()) for stream in streams]
        await asyncio.sleep(0.01)
        await engine.close(drain=drain)
        results = await asyncio.gather(*readers, return_exceptions=True)
        if drain:
            assert [r.text for r in results] == ["A" * 50] * 3
        else:
            assert all(isinstance(r, EngineDeadError) and "closed" in str(r) for r in results)
        assert not engine.is_ready
        for call in (engine.generate("y").start(), engine.encode("y"), engine.start()):
            with pytest.raises(EngineDeadError, match="closed"):
                await call
        await engine.close()
        kit.assert_idle(engine)

    kit.run(lambda: test(True))
    kit.run(lambda: test(False))


def test_engine_that_nobody_closes_ends_its_thread_when_it_is_collected(kit) -> None:
    async def ask() -> threading.Thread:
        engine = kit.make_async_engine([65, kit.EOS])
        assert (await engine.generate("x").get_result()).text == "A"
        return engine._require_loaded().thread._thread

    thread = asyncio.run(ask())
    gc.collect()
    thread.join(120)
    assert not thread.is_alive()


def test_text_is_encoded_off_the_event_loop(kit) -> None:
    has_begun, may_go_on = threading.Event(), threading.Event()

    class SlowTokenizer(kit.make_tokenizer):
        def encode(self, text: str, **options: bool) -> list[int]:
            has_begun.set()
            assert may_go_on.wait(60), "the event loop stands still"
            return super().encode(text, **options)

    async def test() -> None:
        async with kit.make_async_engine([65, kit.EOS], tokenizer=SlowTokenizer()) as engine:
            reader = asyncio.ensure_future(engine.generate("x").get_result())
            await kit.wait_until(has_begun.is_set)
            may_go_on.set()
            assert (await reader).text == "A"

    kit.run(test)
