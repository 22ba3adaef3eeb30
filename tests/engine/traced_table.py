"""A `RequestTable` with a recorder, a clock that only steps move, and a runner that is a script."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from byte_model import ByteTokenizer
from pelton.core.config import EngineConfig
from pelton.core.request import Request
from pelton.core.request_options import RequestOptions
from pelton.core.sampling_params import SamplingParams
from pelton.core.step_plan import SampledToken, StepPlan, StepResult
from pelton.core.trace import RequestTrace
from pelton.engine.core import EngineCore
from pelton.engine.prepare import PreparedRequest
from pelton.engine.prompts import EncodedPrompt
from pelton.engine.requests import RequestTable
from pelton.engine.trace_log import TraceLog
from pelton.engine.trace_recorder import TraceRecorder

PLAN_S, MODEL_S, SAMPLE_S = 0.25, 4.0, 0.5


class TracedTable:
    """Steps take `MODEL_S + SAMPLE_S` seconds of `now_s`; `failing` requests (by key) raise in the model."""

    block_size = 4
    kv_bytes_per_block = 1000

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, num_blocks: int = 64, **options: object) -> None:
        self.num_blocks = num_blocks
        self.now_s = 1000.0
        self.failing: set[str] = set()
        self.model_s = MODEL_S
        config = EngineConfig(**options)
        clock = SimpleNamespace(perf_counter=lambda: self.now_s)
        for module in ("core", "requests", "trace_recorder"):
            monkeypatch.setattr(f"pelton.engine.{module}.time", clock)
        self.core = EngineCore(self, config, is_interactive=False)
        self.core.scheduler._clock = clock.perf_counter
        self.log = TraceLog(config.num_kept_traces)
        recorder = TraceRecorder(self.log, is_fair=config.scheduling_policy == "fair", read_load=lambda: None)
        self.table = RequestTable(self.core, ByteTokenizer(), context_length=400, load_ms=0.0, recorder=recorder)

    def add(
        self, num_prompt_tokens: int, max_tokens: int = 4, *, first_id: int = 0, ago_s: float = 0.0, **options: object
    ) -> RequestTrace:
        """A request whose text came `ago_s` ago, half of it spent on tokenising. Ids count up from `first_id`."""
        ids = tuple((first_id + i) % 256 for i in range(num_prompt_tokens))
        n = options.pop("n", 1)
        prepared = PreparedRequest(
            EncodedPrompt(ids, self.now_s - ago_s, ago_s / 2),
            SamplingParams(max_tokens=max_tokens, n=n),
            RequestOptions(**options),
        )
        return self.table.add(self.table.make_key(), prepared)

    def run(self, plan: StepPlan) -> StepResult:
        """The model: token 65 for everybody."""
        if any(item.request.request_id in self.failing for item in plan.scheduled):
            raise ArithmeticError("scripted")
        self.now_s += self.model_s + SAMPLE_S
        sampled = {i.request.request_id: SampledToken(65, None) for i in plan.scheduled if i.needs_sample}
        return StepResult(sampled=sampled, model_s=self.model_s, sample_s=SAMPLE_S)

    def step(self) -> None:
        """One step."""
        self.table.step(isolates_errors=True)

    def finish(self) -> None:
        """Steps until nothing is left."""
        while self.table.has_unfinished:
            self.step()

    def find(self, trace: RequestTrace) -> Request:
        """The scheduler's request of the first choice."""
        return next(r for r in self.core.scheduler._requests.values() if r.arrival_number == trace.numbers[0])


def sum_waits(trace: RequestTrace) -> dict[str, float]:
    """Seconds by cause; spans must follow each other without overlap."""
    sums: dict[str, float] = {}
    end_s = 0.0
    for wait in trace.waits:
        assert end_s <= wait.start_s < wait.end_s
        end_s = wait.end_s
        sums[wait.cause.value] = sums.get(wait.cause.value, 0.0) + wait.end_s - wait.start_s
    return sums


def get_queue_s(trace: RequestTrace) -> float:
    """Seconds from the token ids to the first step."""
    assert trace.first_scheduled_s is not None
    return trace.first_scheduled_s - trace.arrival_s - trace.tokenize_s
