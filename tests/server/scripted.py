"""A scripted engine: the tokenizer of `byte_model.py` and a runner that generates what it is told; no model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from byte_model import EOS, ByteTokenizer, make_config
from pelton.core.config import EngineConfig
from pelton.core.embedding import TextChunk
from pelton.core.outputs import TokenLogprobs
from pelton.core.request import Request
from pelton.core.step_plan import SampledToken, StepPlan, StepResult
from pelton.engine.async_engine import AsyncEngine
from pelton.engine.parts import EngineParts
from pelton.text.chat_template import ChatTemplate

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'villain' %}{{ raise_exception('no villains') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)

# Options of an engine whose answers do not come to an end while a test looks at them.
ENDLESS: dict[str, int] = {"model_context": 100_000, "num_blocks": 40_000}


class ScriptedRunner:
    """Generates what `choose(request)` says, one token per request and step.

    `step_s` is how long a step takes, `fail_requests(request)` may raise for one request, `die` is raised by the next
    step (an error of the whole engine), and steps wait while `gate` is not set. The gate closes by itself after
    `close_gate_at` steps.
    """

    def __init__(self, choose: Callable[[Request], int], *, num_blocks: int, block_size: int = 4) -> None:
        self.choose = choose
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.kv_bytes_per_block = 1000
        self.num_threads = 1
        self.isa = "scripted"
        self.step_s = 0.0
        self.num_steps = 0
        self.die: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.close_gate_at: int | None = None

    def run(self, plan: StepPlan) -> StepResult:
        assert self.gate.wait(120), "a test left the gate closed"
        if self.die is not None:
            raise self.die
        self.num_steps += 1
        if self.num_steps == self.close_gate_at:
            self.gate.clear()
        if self.step_s:
            time.sleep(self.step_s)
        sampled = {}
        for item in plan.scheduled:
            request = item.request
            if item.needs_sample:
                token_id = self.choose(request)
                num = request.params.logprobs
                top = tuple((other, -1.0 - other / 1000) for other in range(num or 0))
                logprobs = None if num is None else TokenLogprobs(-0.5, top)
                sampled[request.request_id] = SampledToken(token_id, logprobs)
        return StepResult(sampled=sampled, model_s=0.0, sample_s=0.0)

    @property
    def num_embedding_blocks(self) -> int:
        """As many as requests have."""
        return self.num_blocks

    def compute_hidden_states(self, chunks: Sequence[TextChunk]) -> np.ndarray:
        """All hidden states are (3, 4), whose unit vector is (0.6, 0.8)."""
        return np.tile(np.float32([3.0, 4.0]), (sum(len(chunk.token_ids) for chunk in chunks), 1))

    def end_hidden_states(self) -> None:
        """Nothing to give back."""

    def close(self) -> None:
        """Nothing to give back."""


def say(text: str, end: int | None = EOS) -> Callable[[Request], int]:
    """Generate the bytes of `text`, then `end`; over and over if that is None."""
    ids = list(text.encode())

    def choose(request: Request) -> int:
        number = len(request.output_token_ids)
        if end is None:
            return ids[number % len(ids)]
        return ids[number] if number < len(ids) else end

    return choose


def echo(request: Request) -> int:
    """Generate the prompt again, without control tokens, then the end."""
    ids = [i for i in request.prompt_token_ids if i < 256]
    number = len(request.output_token_ids)
    return ids[number] if number < len(ids) else EOS


def make_engine(
    choose: Callable[[Request], int],
    *,
    tokenizer: ByteTokenizer | None = None,
    template: str | None = TEMPLATE,
    model_context: int = 512,
    num_blocks: int = 512,
    **options: object,
) -> AsyncEngine:
    """An engine whose model is a script; `options` are fields of EngineConfig."""
    tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
    model_config = make_config(tokenizer.vocab_size, model_context)
    chat_template = None if template is None else ChatTemplate(template, bos_token="<s>", eos_token="")
    runner = ScriptedRunner(choose, num_blocks=num_blocks)
    parts = EngineParts(model_config, tokenizer, chat_template, runner, load_ms=12.5)
    engine = AsyncEngine.from_parts(parts, EngineConfig(**options))
    engine.runner = runner  # for tests that hold it up, slow it down or kill it
    return engine
