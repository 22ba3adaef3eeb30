"""The real scheduler, table and recorder over a model that only takes time: a clock that nothing but steps moves.

A step takes `base_s`, `prompt_s` for each prompt token and `decode_s` for each sequence that decodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace

import pytest

from byte_model import ByteTokenizer, make_config
from pelton.core.config import EngineConfig
from pelton.core.request_options import RequestOptions
from pelton.core.sampling_params import SamplingParams
from pelton.core.step_plan import SampledToken, StepPlan, StepResult
from pelton.core.trace import LoadSample, RequestTrace
from pelton.engine.core import EngineCore
from pelton.engine.llm import LLM
from pelton.engine.parts import EngineParts
from pelton.engine.prepare import PreparedRequest
from pelton.engine.prompts import EncodedPrompt
from pelton.engine.requests import RequestTable
from pelton.engine.trace_log import TraceLog
from pelton.engine.trace_recorder import TraceRecorder
from pelton.insight.explain_facts import RequestFacts
from pelton.insight.explain_history import History
from pelton.insight.explain_setup import Setup
from pelton.insight.kv_layout import KvFormat
from pelton.insight.machine_limits import Measured, ThreadLimits
from pelton.insight.machine_rates import TableMachine
from pelton.insight.model_source import make_shape
from pelton.insight.prediction import Planned
from pelton.insight.weight_formats import ModelFormats

START_S = 1000.0
CONTEXT = 8192


class ClockedRunner:
    """The model: token 65 for everybody, after a time that the tokens of the step decide."""

    block_size = 4
    kv_bytes_per_block = 1000
    isa = "scripted"

    def __init__(self, num_blocks: int, base_s: float, prompt_s: float, decode_s: float, num_threads: int) -> None:
        self.num_blocks = num_blocks
        self.num_threads = num_threads
        self.costs = (base_s, prompt_s, decode_s)
        self.now_s = START_S

    def run(self, plan: StepPlan) -> StepResult:
        num_decodes = sum(len(i.token_ids) == 1 and i.start >= len(i.request.prompt_token_ids) for i in plan.scheduled)
        base_s, prompt_s, decode_s = self.costs
        model_s = base_s + prompt_s * (plan.num_tokens - num_decodes) + decode_s * num_decodes
        self.now_s += model_s
        sampled = {i.request.request_id: SampledToken(65, None) for i in plan.scheduled if i.needs_sample}
        return StepResult(sampled=sampled, model_s=model_s, sample_s=0.0)

    def close(self) -> None:
        """Nothing to give back."""


class ClockedEngine:
    """`add` requests and `step`; `load` is (CPUs of this process, of others, waiting threads, number of CPUs)."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        num_blocks: int = 8192,
        base_s: float = 0.0,
        prompt_s: float = 0.001,
        decode_s: float = 0.002,
        num_threads: int = 1,
        load: tuple[float, float, float | None, int] | None = None,
        **options: object,
    ) -> None:
        self.config = EngineConfig(**options)
        self.runner = ClockedRunner(num_blocks, base_s, prompt_s, decode_s, num_threads)
        self.load = load
        clock = SimpleNamespace(perf_counter=lambda: self.runner.now_s)
        for module in ("core", "requests", "trace_recorder", "llm", "prompts"):
            monkeypatch.setattr(f"pelton.engine.{module}.time", clock)
        self.core = EngineCore(self.runner, self.config)
        self.core.scheduler._clock = clock.perf_counter
        self.log = TraceLog(self.config.num_kept_traces)
        is_fair = self.config.scheduling_policy == "fair"
        recorder = TraceRecorder(self.log, is_fair=is_fair, read_load=self.read_load)
        self.table = RequestTable(self.core, ByteTokenizer(), context_length=CONTEXT, load_ms=0.0, recorder=recorder)

    @property
    def now_s(self) -> float:
        return self.runner.now_s

    def read_load(self) -> LoadSample | None:
        if self.load is None:
            return None
        own, foreign, waiting, num_cpus = self.load
        seconds = self.now_s - START_S
        wait_s = None if waiting is None else waiting * seconds
        return LoadSample(self.now_s, own * seconds, (own + foreign) * seconds, wait_s, num_cpus)

    def add(
        self, prompt: int | Sequence[int], max_tokens: int = 4, *, first: int = 0, ago_s: float = 0.0, **options: object
    ) -> RequestTrace:
        """A prompt of token ids, or of a number of them that begin with `first`; it came `ago_s` ago."""
        ids = tuple(prompt) if not isinstance(prompt, int) else tuple((first + 7 * i) % 251 for i in range(prompt))
        prepared = PreparedRequest(
            EncodedPrompt(ids, self.now_s - ago_s, 0.0),
            SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            RequestOptions(**options),
        )
        return self.table.add(self.table.make_key(), prepared)

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.table.step()

    def finish(self) -> None:
        while self.table.has_unfinished:
            self.step()

    def make_llm(self, **options: object) -> LLM:
        """The blocking interface over the same runner and clock."""
        parts = EngineParts(make_config(259, CONTEXT), ByteTokenizer(), None, self.runner)
        llm = LLM.from_parts(parts, EngineConfig(**options))
        llm._core.scheduler._clock = lambda: self.now_s
        return llm

    @property
    def history(self) -> History:
        samples = [*self.log.list_samples(), *([] if self.load is None else [self.read_load()])]
        requests = [*self.log.list_finished(), *self.log.list_live()]
        return History(requests, self.log.list_steps(), samples, now_s=self.now_s)

    @property
    def setup(self) -> Setup:
        return make_setup(self.runner, self.config)

    def explain(self, trace: RequestTrace) -> RequestFacts:
        return RequestFacts(trace, self.history, self.setup)


def make_setup(runner: ClockedRunner, config: EngineConfig) -> Setup:
    """The smallest model on a machine that is made up."""
    shape = make_shape(make_config(259, CONTEXT))
    rates = make_machine()
    return Setup(
        config=config,
        num_threads=runner.num_threads,
        num_blocks=runner.num_blocks,
        block_size=runner.block_size,
        kv_bytes_per_block=runner.kv_bytes_per_block,
        planned=Planned(shape, ModelFormats.make_uniform("f32"), KvFormat("f32")),
        rates=rates,
    )


def make_machine(read_bytes_per_s: float = 1e6, ops_per_s: float = 1e7) -> TableMachine:
    """One megabyte and ten million operations per second."""
    rate = Measured(ops_per_s, ops_per_s)
    limits = ThreadLimits(1, Measured(read_bytes_per_s, read_bytes_per_s), 1, rate, rate, None, Measured(0.0, 0.0))
    return TableMachine("made-up", "made up", "a test", "cpu", limits, 10**9, ops_per_s)


def list_names(verdicts: Iterable[object]) -> list[str]:
    return [verdict.name for verdict in verdicts]
