"""Runs the command line in this process, with an engine whose model is a script. See `Cli.run`."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from byte_model import make_config
from pelton.cli import main as cli_main
from pelton.cli import open_model
from pelton.core.config import EngineConfig
from pelton.core.errors import ModelNotFoundError
from pelton.core.request import Request
from pelton.core.step_cost import NodeTime
from pelton.core.step_plan import SampledToken, StepPlan, StepResult
from pelton.engine.llm import LLM
from pelton.engine.parts import EngineParts
from pelton.insight.machine_limits import MachineLimits, Measured, ThreadLimits
from pelton.text.chat_template import ChatTemplate

BOS, EOS = 256, 257
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


class ByteTokenizer:
    """One token per UTF-8 byte, then BOS and EOS."""

    vocab_size = 258
    bos_token_id = BOS
    eos_token_ids = frozenset((EOS,))
    add_eos = False
    strips_leading_space = False

    def __init__(self, *, add_bos: bool = False) -> None:
        self.add_bos = add_bos

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return ([BOS] if add_special and self.add_bos else []) + list(text.encode())

    def count_least_tokens(self, text: str) -> int:
        return len(text.encode("utf-8", "replace")) // 3  # "<s>" is one token

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def piece(self, token_id: int) -> str:
        return chr(token_id) if token_id < 256 else {BOS: "<s>", EOS: "</s>"}[token_id]

    def is_special(self, token_id: int) -> bool:
        return token_id >= 256


class ScriptedRunner:
    """Answers every request with `answer`, then EOS; keeps the plans it was given and the prompts it has seen."""

    num_threads = 1
    isa = "scalar"
    block_size = 16
    kv_bytes_per_block = 1000

    def __init__(self, answer: str, *, num_blocks: int = 64) -> None:
        self.script = [*answer.encode(), EOS]
        self.num_blocks = num_blocks
        self.plans: list[StepPlan] = []
        self.prompts: list[str] = []
        self.interrupt_at: int | None = None
        self.is_closed = False

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        sampled = {}
        for item in plan.scheduled:
            request: Request = item.request
            num_output = len(request.output_token_ids)
            if num_output == self.interrupt_at:
                self.interrupt_at = None
                raise KeyboardInterrupt
            if item.needs_sample and num_output == 0:
                self.prompts.append(bytes(i for i in request.prompt_token_ids if i < 256).decode(errors="replace"))
            if item.needs_sample:
                token_id = self.script[num_output % len(self.script)]
                sampled[request.request_id] = SampledToken(token_id, None)
        return StepResult(sampled=sampled, model_s=0.0, sample_s=0.0)

    def get_node_times(self) -> list[NodeTime]:
        """A step reads 1000 bytes and does 5000 int8 and 3000 float32 operations."""
        return [("linear", 0.003, 600.0, 5000.0), ("attend", 0.001, 400.0, 2000.0), ("rope", 0.001, 0.0, 1000.0)]

    def score(self, token_ids: Sequence[int], first: int) -> np.ndarray:
        """Every token has the probability 1 / (1 + its id)."""
        return -np.log1p(np.asarray(token_ids[first:], dtype=np.float64))

    def close(self) -> None:
        self.is_closed = True


def make_limits(isa: str, thread_counts: Sequence[int], progress: object = None) -> MachineLimits:
    """A slow machine: 1000 bytes/s, 10,000 int8 and 1000 float32 operations/s."""
    limits = [
        ThreadLimits(n, Measured(1e3, 9e2), 4, Measured(1e3, 9e2), Measured(1e4, 9e3), None, Measured(1e-6, 2e-6))
        for n in thread_counts
    ]
    return MachineLimits(isa, 1 << 28, tuple(limits))


def make_llm(
    runner: ScriptedRunner, config: EngineConfig, tokenizer: ByteTokenizer, context: int, template: str | None
) -> LLM:
    model_config = make_config(tokenizer.vocab_size, context, name="fake model")
    chat_template = None if template is None else ChatTemplate(template)
    return LLM.from_parts(EngineParts(model_config, tokenizer, chat_template, runner, load_ms=1.5), config)


class Terminal(io.StringIO):
    """A text stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Piped(io.TextIOWrapper):
    """A text stream over given bytes that says it is not a terminal."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")


@dataclass
class Outcome:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The error line, after checking that it is the only line, in the one form errors have."""
        assert self.code in (1, 2)
        assert self.err.startswith("pelton: error: ")
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1
        return self.err.removeprefix("pelton: error: ").rstrip("\n")


@dataclass
class Cli:
    """A command line over a scripted engine; the attributes say what the engine is like."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]
    runner: ScriptedRunner = field(default_factory=lambda: ScriptedRunner("Hello!"))
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    context: int = 512
    template: str | None = TEMPLATE
    references: list[str | None] = field(default_factory=list)
    configs: list[EngineConfig] = field(default_factory=list)

    def load(self, reference: str | None, config: EngineConfig, progress: Callable[[int, int | None], None]) -> LLM:
        self.references.append(reference)
        self.configs.append(config)
        if reference == "missing":
            raise ModelNotFoundError("model 'missing' does not exist; allowed: smollm2")
        return make_llm(self.runner, config, self.tokenizer, self.context, self.template)

    def run(self, *arguments: str, stdin: bytes = b"", typed: str | None = None) -> Outcome:
        """Run `pelton ARGUMENTS`, with `stdin` piped in or `typed` coming from a terminal."""
        with self.monkeypatch.context() as patch:
            patch.setattr(open_model, "load_llm", self.load)
            patch.setattr(open_model, "open_tokenizer", lambda reference: self.tokenizer)
            patch.setattr("pelton.cli.tokenize.open_tokenizer", lambda reference: self.tokenizer)
            patch.setattr("pelton.cli.bench.measure_limits", make_limits)
            patch.setattr("pelton.cli.bench_machine.measure_limits", make_limits)
            patch.setattr(sys, "stdin", Terminal(typed) if typed is not None else Piped(stdin))
            code = cli_main.main(list(arguments))
        captured = self.capsys.readouterr()
        return Outcome(code, captured.out, captured.err)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    monkeypatch.setenv("PELTON_CACHE", str(tmp_path / "cache"))
    for name in ("PELTON_ISA", "PELTON_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    return Cli(monkeypatch, capsys)
