"""A scripted engine for tests: a byte-level tokenizer, a runner that generates what it is told, no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

import numpy as np
import pytest

from pelton.core.config import EngineConfig
from pelton.core.errors import InvalidParameterError
from pelton.core.model_config import ModelConfig, RopeConfig
from pelton.core.outputs import RequestOutput, TokenLogprobs
from pelton.core.request import Request
from pelton.core.step_plan import SampledToken, StepPlan, StepResult
from pelton.engine.async_engine import AsyncEngine
from pelton.engine.core import EngineCore
from pelton.engine.llm import LLM
from pelton.engine.parts import EngineParts
from pelton.text.chat_template import ChatTemplate

BOS, EOS, END_OF_TURN = 256, 257, 258
TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


class ByteTokenizer:
    """Ids 0 to 255 are bytes, then three control tokens, then `pieces`, multi-byte tokens that only a runner uses."""

    def __init__(self, *, add_bos: bool = True, pieces: Sequence[str] = ()) -> None:
        self.bos_token_id = BOS
        self.eos_token_ids = frozenset((EOS, END_OF_TURN))
        self.add_bos = add_bos
        self.add_eos = False
        self.strips_leading_space = False
        self._bytes = [bytes([b]) for b in range(256)] + [b""] * 3 + [p.encode() for p in pieces]
        self.vocab_size = len(self._bytes)
        self._id_of_piece = {p: 259 + i for i, p in enumerate(pieces)}

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise InvalidParameterError("text", "a lone surrogate", "text that can be written as UTF-8")
        ids = [BOS] if add_special and self.add_bos else []
        while text:
            if parse_special and text.startswith("<s>"):
                ids.append(BOS)
                text = text[3:]
            else:
                ids += text[0].encode()
                text = text[1:]
        return ids

    def count_least_tokens(self, text: str) -> int:
        return len(text.encode("utf-8", "replace")) // 3  # "<s>" is one token

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        return b"".join(self._bytes[i] for i in ids).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id]

    def piece(self, token_id: int) -> str:
        return self._bytes[token_id].decode(errors="replace")

    def is_special(self, token_id: int) -> bool:
        return BOS <= token_id <= END_OF_TURN

    def get_piece_ids(self, pieces: Iterable[str]) -> list[int]:
        return [self._id_of_piece[p] for p in pieces]


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


def follow(script: Sequence[int]) -> Callable[[Request], int]:
    return lambda request: script[len(request.output_token_ids)]


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
    model_config = ModelConfig(
        model_type="fake",
        name="fake",
        vocab_size=tokenizer.vocab_size,
        hidden_size=1,
        intermediate_size=1,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=1,
        max_position_embeddings=model_context,
        norm_eps=1e-5,
        rope=RopeConfig(num_dims=1),
        tie_word_embeddings=True,
    )
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
        asyncio.run(asyncio.wait_for(test(), 30))

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
