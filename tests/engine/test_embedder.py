"""`AsyncEngine.embed`: callers of all kinds, beside requests, dropped, overloaded, dead. The model is a script."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from pelton import SamplingParams
from pelton.core.config import EngineConfig
from pelton.core.embedding import EmbeddingParams, TextChunk
from pelton.core.errors import ContextLengthError, EngineDeadError, EngineOverloadedError, InvalidParameterError
from pelton.engine.async_engine import AsyncEngine
from pelton.engine.parts import EngineParts

RAW = EmbeddingParams(normalize=False)


class HiddenStates:
    """Gives a scripted runner hidden states: token t at position p is [t, p]. Chunks wait while `gate` is not set."""

    num_embedding_blocks = 64

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.error: BaseException | None = None
        self.chunk_sizes: list[int] = []
        self.runner: object = None

    def compute_hidden_states(self, chunks: Sequence[TextChunk]) -> np.ndarray:
        assert self.gate.wait(30), "a test left the gate closed"
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        self.chunk_sizes.append(sum(len(chunk.token_ids) for chunk in chunks))
        rows = [(float(t), float(c.start + i)) for c in chunks for i, t in enumerate(c.token_ids)]
        return np.array(rows, np.float32)

    def end_hidden_states(self) -> None:
        pass


async def wait_for_calls(kit, engine: AsyncEngine, num_calls: int) -> None:
    """Until that many calls wait for their vectors."""
    await kit.wait_until(lambda: len(engine._require_loaded().embedder._calls) == num_calls)


@pytest.fixture
def states() -> HiddenStates:
    return HiddenStates()


@pytest.fixture
def make_engine(kit, states: HiddenStates):
    """An engine that generates "aaa..." and embeds by `states`."""

    def make(**options: object) -> AsyncEngine:
        llm = kit.make_llm(lambda request: ord("a"), model_context=256, **options)
        runner = llm.runner
        for name in ("compute_hidden_states", "end_hidden_states", "num_embedding_blocks"):
            setattr(runner, name, getattr(states, name))
        states.runner = runner
        parts = EngineParts(llm.model_config, llm.tokenizer, None, runner)
        return AsyncEngine.from_parts(parts, EngineConfig(**options))

    return make


def test_vectors_come_in_the_order_of_the_texts(make_engine, kit) -> None:
    async def run() -> None:
        async with make_engine() as engine:
            result = await engine.embed(["ab", [7, 9]], RAW)
            assert result.vectors[0].tolist() == pytest.approx([(kit.BOS + 97 + 98) / 3, 1.0])
            assert result.vectors[1].tolist() == [8.0, 0.5]
            assert result.num_tokens == 5
            assert result.queue_ms >= 0.0

    asyncio.run(run())


def test_callers_beside_each_other_and_beside_a_stream_get_what_they_would_get_alone(make_engine) -> None:
    async def run() -> None:
        async with make_engine() as engine:
            alone = [(await engine.embed(["x" * n])).vectors[0] for n in range(1, 20)]
            stream = engine.generate("hi", SamplingParams(max_tokens=50, ignore_eos=True))
            text = asyncio.ensure_future(stream.get_result())
            together = await asyncio.gather(*(engine.embed(["x" * n]) for n in range(1, 20)))
            assert all(np.array_equal(a, b.vectors[0]) for a, b in zip(alone, together, strict=True))
            assert (await text).text == "a" * 50

    asyncio.run(run())


def test_chunks_are_small_while_requests_run(make_engine, kit, states: HiddenStates) -> None:
    async def run() -> None:
        async with make_engine() as engine:
            gate = threading.Semaphore(1)
            states.runner.on_step = lambda: gate.acquire(timeout=120)
            stream = engine.generate("hi", SamplingParams(max_tokens=200, ignore_eos=True))
            await anext(stream)
            call = asyncio.ensure_future(engine.embed(["x" * 200]))
            await wait_for_calls(kit, engine, 1)
            gate.release(1000)
            await call
            await stream.aclose()
            assert max(states.chunk_sizes) <= 16
            states.chunk_sizes.clear()
            await engine.embed(["x" * 200])
            assert states.chunk_sizes == [128, 73]

    asyncio.run(run())


def test_a_cancelled_call_is_dropped(make_engine, kit, states: HiddenStates) -> None:
    async def run() -> None:
        async with make_engine() as engine:
            states.gate.clear()
            first = asyncio.ensure_future(engine.embed(["x"]))
            await wait_for_calls(kit, engine, 1)
            second = asyncio.ensure_future(engine.embed(["y" * 100]))
            await wait_for_calls(kit, engine, 2)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            states.gate.set()
            await first
            await engine.embed(["z"])
            assert sum(states.chunk_sizes) == 4

    asyncio.run(run())


def test_a_failing_chunk_fails_its_callers_and_nobody_else(make_engine, states: HiddenStates) -> None:
    async def run() -> None:
        async with make_engine() as engine:
            states.error = RuntimeError("no memory")
            with pytest.raises(RuntimeError, match="no memory"):
                await engine.embed(["x"])
            assert (await engine.embed(["x"])).num_tokens == 2
            assert engine.is_ready

    asyncio.run(run())


def test_closing_the_engine_ends_waiting_calls(make_engine, kit, states: HiddenStates) -> None:
    async def run() -> None:
        engine = await make_engine().start()
        states.gate.clear()
        calls = [asyncio.ensure_future(engine.embed(["x" * 100])) for _ in range(3)]
        await wait_for_calls(kit, engine, 3)
        closing = asyncio.ensure_future(engine.close())
        await kit.wait_until(lambda: not engine.is_ready)
        states.gate.set()
        await closing
        outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 120)
        assert all(isinstance(o, EngineDeadError) or o.num_tokens == 101 for o in outcomes)
        with pytest.raises(EngineDeadError):
            await engine.embed(["x"])

    asyncio.run(run())


def test_draining_finishes_waiting_calls(make_engine, kit, states: HiddenStates) -> None:
    async def run() -> None:
        engine = await make_engine().start()
        states.gate.clear()
        calls = [asyncio.ensure_future(engine.embed(["x" * 250] * 4)) for _ in range(3)]
        await wait_for_calls(kit, engine, 3)
        closing = asyncio.ensure_future(engine.close(drain=True))
        await kit.wait_until(lambda: not engine.is_ready)
        states.gate.set()
        assert [result.num_tokens for result in await asyncio.gather(*calls)] == [1004] * 3
        await closing

    asyncio.run(run())


def test_a_full_queue_refuses(make_engine, kit, states: HiddenStates) -> None:
    async def run() -> None:
        async with make_engine(max_queued_requests=2) as engine:
            states.gate.clear()
            calls = [asyncio.ensure_future(engine.embed(["x"])) for _ in range(2)]
            await wait_for_calls(kit, engine, 2)
            with pytest.raises(EngineOverloadedError):
                await engine.embed(["x"])
            states.gate.set()
            await asyncio.gather(*calls)

    asyncio.run(run())


def test_bad_inputs_are_named(make_engine) -> None:
    async def run() -> None:
        async with make_engine() as engine:
            with pytest.raises(InvalidParameterError, match=r"^input is \[\]"):
                await engine.embed([], name="input")
            with pytest.raises(ContextLengthError, match=r"tokens of input\[1\]"):
                await engine.embed(["x", "x" * 300], name="input")
            with pytest.raises(InvalidParameterError, match=r"prompts\[0\]|prompts is"):
                await engine.embed([[9999]])
            with pytest.raises(InvalidParameterError, match=r"tokens of prompts\[1\] is 6; allowed: at most 5"):
                await engine.embed(["abcd", "abcde"], max_prompt_tokens=5)

    asyncio.run(run())
