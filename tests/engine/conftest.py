"""A scripted engine for tests: the tokenizer of `byte_model.py`, a runner that generates what it is told, no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import numpy as np
import pytest

from byte_model import BOS, END_OF_TURN, EOS, ByteTokenizer, follow, make_config
from pelton.core.config import EngineConfig
from pelton.core.outputs import RequestOutput, TokenLogprobs
from pelton.core.request import Request
from pelton.core.step_plan import SampledToken, StepPlan, StepResult
from pelton.engine.async_engine import AsyncEngine
from pelton.engine.core import EngineCore
from pelton.engine.llm import LLM
from pelton.engine.parts import EngineParts
from pelton.text.chat_template import ChatTemplate

TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


class ScriptedRunner:
    """Generates `script[n]` as the n-th token of every request, or what `choose(request)` says.

    `fail_at` raises the given error in that step (counted from 0), once.
    """

    def __init__(self, choose: Callable[[Request], int], *, num_blocks: int = 64, block_size: int = 4) -> None:
        self.choose = choose
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.kv_bytes_per_block = 1000
        self.num_threads = 1
        self.isa = "scripted"
        self.num_steps = 0
        self.max_num_scheduled = 0
        self.fail_at: dict[int, BaseException] = {}
        self.is_closed = False
        self.on_step: Callable[[], None] | None = None

    def run(self, plan: StepPlan) -> StepResult:
        assert not self.is_closed
        step = self.num_steps
        self.num_steps += 1
        self.max_num_scheduled = max(self.max_num_scheduled, len(plan.scheduled))
        if self.on_step is not None:
            self.on_step()
        if step in self.fail_at:
            raise self.fail_at[step]
        sampled = {}
        for item in plan.scheduled:
            if item.needs_sample:
                request = item.request
                token_id = self.choose(request)
                num = request.params.logprobs
                logprobs = None if num is None else TokenLogprobs(-0.5, ((token_id, -0.5),) * num)
                sampled[request.request_id] = SampledToken(token_id, logprobs)
        return StepResult(sampled=sampled, model_s=0.0, sample_s=0.0)

    def score(self, token_ids: Sequence[int], first: int) -> np.ndarray:
        return np.arange(first, len(token_ids), dtype=np.float64)

    def close(self) -> None:
        self.is_closed = True


def make_llm(choose: Callable[[Request], int] | Sequence[int], **options: object) -> LLM:
    """An LLM whose model is a script; `options` are those of `make_parts` and fields of EngineConfig."""
    parts, config = make_parts(choose, **options)
    return LLM.from_parts(parts, config)


def make_async_engine(choose: Callable[[Request], int] | Sequence[int], **options: object) -> AsyncEngine:
    """An AsyncEngine whose model is a script; options as for `make_llm`."""
    parts, config = make_parts(choose, **options)
    return AsyncEngine.from_parts(parts, config)


def make_parts(
    choose: Callable[[Request], int] | Sequence[int],
    *,
    tokenizer: ByteTokenizer | None = None,
    template: str | None = TEMPLATE,
    model_context: int = 128,
    num_blocks: int = 64,
    **options: object,
) -> tuple[EngineParts, EngineConfig]:
    """The parts of an engine whose model is a script; `options` are fields of EngineConfig."""
    tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
    model_config = make_config(tokenizer.vocab_size, model_context)
    chat_template = None if template is None else ChatTemplate(template, bos_token="<s>", eos_token="")
    runner = ScriptedRunner(choose if callable(choose) else follow(choose), num_blocks=num_blocks)
    return EngineParts(model_config, tokenizer, chat_template, runner, load_ms=12.5), EngineConfig(**options)


class Kit:
    """What the tests use, in one fixture (test files cannot import each other)."""

    BOS = BOS
    EOS = EOS
    END_OF_TURN = END_OF_TURN
    make_tokenizer = ByteTokenizer
    make_llm = staticmethod(make_llm)
    make_async_engine = staticmethod(make_async_engine)

    @staticmethod
    def run(test: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine function to its end; a hang is a failure, not a wait for ever."""
        asyncio.run(asyncio.wait_for(test(), 120))

    @staticmethod
    async def read(stream: AsyncIterator[RequestOutput]) -> list[RequestOutput]:
        return [output async for output in stream]

    @staticmethod
    async def wait_until(condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.001)

    @staticmethod
    def get_core(engine: LLM | AsyncEngine) -> EngineCore:
        return engine._core if isinstance(engine, LLM) else engine._require_loaded().core

    @staticmethod
    def assert_idle(engine: LLM | AsyncEngine) -> None:
        """No request is left and all blocks are free."""
        scheduler = Kit.get_core(engine).scheduler
        scheduler.check_invariants()
        assert not scheduler.has_unfinished_requests
        assert scheduler.block_pool.num_free_blocks == scheduler.block_pool.num_blocks


@pytest.fixture
def kit() -> Kit:
    return Kit()
