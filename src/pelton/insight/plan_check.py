"""`PlanCheck`: a loaded model beside its plan: predicted and measured memory, and the speed to expect. Never measures.

Takes facts and the file's header, not an engine. Start at `make_plan_check`; `check_request` compares one answer.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from pelton.core.load_facts import LoadFacts
from pelton.core.outputs import GenerationResult
from pelton.insight.cost_model import count_weight_bytes
from pelton.insight.machine_rates import MachineRates
from pelton.insight.model_source import read_planned
from pelton.insight.plan import count_engine_bytes, count_kept_kv_bytes
from pelton.insight.prediction import Planned, predict_decode, predict_prefill
from pelton.insight.this_machine import find_this_machine, list_own_needs
from pelton.insight.workspace import count_workspace_bytes

_PROMPT_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity, predicted and measured, in the same unit; `measured` is None where nobody could look."""

    predicted: float
    measured: float | None

    @property
    def deviation_pct(self) -> float | None:
        """How far the prediction is off, positive where it is too high."""
        return 100.0 * (self.predicted / self.measured - 1.0) if self.measured else None

    def describe(self, factor: float, digits: int = 1) -> str:
        """Both numbers times `factor`, and the deviation."""
        predicted = f"{self.predicted * factor:,.{digits}f}"
        if self.measured is None or self.deviation_pct is None:
            return f"{predicted} / not known"
        return f"{predicted} / {self.measured * factor:,.{digits}f} ({self.deviation_pct:+.1f} %)"

    def make_dict(self) -> dict[str, object]:
        """As JSON."""
        return {"predicted": self.predicted, "measured": self.measured, "deviation_pct": self.deviation_pct}


@dataclass(frozen=True, slots=True)
class ExpectedSpeed:
    """Predicted for one user at stored rates: TTFT of `prompt_tokens` tokens, and ITL behind them."""

    prompt_tokens: int
    ttft_s: float
    itl_s: float


@dataclass(frozen=True, slots=True)
class PlanCheck:
    """Plan against actual: bytes of weights, of the whole KV cache, and of the program (what loading added besides).

    `workspace_bytes` is what the largest step adds later; `speed` None where no rates of this machine are stored.
    """

    planned: Planned
    machine: MachineRates | None
    weight_bytes: Comparison
    kv_cache_bytes: Comparison
    program_bytes: Comparison
    max_step_tokens: int
    workspace_bytes: int
    speed: ExpectedSpeed | None

    def describe(self) -> list[str]:
        """Lines for people."""
        parts = (
            f"weights {self.weight_bytes.describe(1e-6)}",
            f"KV cache {self.kv_cache_bytes.describe(1e-6)}",
            f"program {self.program_bytes.describe(1e-6)}",
            f"workspace of a step of {self.max_step_tokens:,} tokens {self.workspace_bytes / 1e6:,.1f}, not used yet",
        )
        lines = ["MB planned / measured: " + " | ".join(parts)]
        if self.speed is not None:
            lines.append(
                f"expected for one user: TTFT {self.speed.ttft_s * 1e3:,.1f} ms for {self.speed.prompt_tokens} tokens, "
                f"then ITL {self.speed.itl_s * 1e3:.2f} ms"
            )
        return lines

    def make_dict(self) -> dict[str, object]:
        """As JSON: bytes and seconds."""
        return {
            "memory": {
                "weight_bytes": self.weight_bytes.make_dict(),
                "kv_cache_bytes": self.kv_cache_bytes.make_dict(),
                "program_bytes": self.program_bytes.make_dict(),
                "workspace_bytes": {"predicted": self.workspace_bytes, "step_tokens": self.max_step_tokens},
            },
            "speed": None if self.speed is None else dataclasses.asdict(self.speed),
        }


def make_plan_check(facts: LoadFacts, cache_dir: Path) -> PlanCheck | None:
    """Compare what `facts` say with the plan for that file; None for a model that came from no file.

    Rates of this machine are taken from `cache_dir` if they are there. Reads the file's header: `ModelFileError` if it
    cannot be read any more.
    """
    if facts.model_path is None or facts.memory is None:
        return None
    planned = read_planned(facts.model_path, facts.kv_cache_dtype)
    kv_bytes = count_kept_kv_bytes(planned, facts.num_kv_blocks * facts.block_size)
    assert kv_bytes is not None, "what was loaded has keys and values"
    needs = list_own_needs(planned)
    machine = find_this_machine(needs, facts.isa, facts.num_threads, cache_dir) if facts.use_kv_cache else None
    memory = facts.memory
    return PlanCheck(
        planned=planned,
        machine=machine,
        weight_bytes=Comparison(count_weight_bytes(planned.shape, planned.formats), memory.weight_bytes),
        kv_cache_bytes=Comparison(kv_bytes, facts.num_kv_blocks * facts.kv_bytes_per_block),
        program_bytes=Comparison(count_engine_bytes(planned.shape), memory.program_bytes),
        max_step_tokens=facts.max_step_tokens,
        workspace_bytes=_count_workspace(planned, facts),
        speed=None if machine is None else _expect_speed(planned, machine, facts),
    )


def _count_workspace(planned: Planned, facts: LoadFacts) -> int:
    is_quantized = planned.formats.default.number_type == "int8"
    return count_workspace_bytes(planned.shape, facts.max_step_tokens, 1, facts.num_threads, is_quantized=is_quantized)


def _expect_speed(planned: Planned, machine: MachineRates, facts: LoadFacts) -> ExpectedSpeed:
    prompt = max(min(_PROMPT_TOKENS, facts.context_length - 1), 1)
    ttft_s = predict_prefill(planned, machine, 1, prompt, 0, facts.max_step_tokens).total_s
    return ExpectedSpeed(prompt, ttft_s, predict_decode(planned, machine, 1, prompt + 1).total_s)


@dataclass(frozen=True, slots=True)
class RequestCheck:
    """TTFT and ITL (None with less than two tokens) of one request in seconds, predicted and measured.

    `ttft_s` begins with the request's tokens; `text_s`, which came before, is not predicted: template and tokenizer.
    """

    ttft_s: Comparison
    itl_s: Comparison | None
    text_s: float

    def describe(self) -> str:
        """One line for people."""
        itl = "" if self.itl_s is None else f" | ITL {self.itl_s.describe(1e3, 2)}"
        text = f", and {self.text_s * 1e3:.1f} before it for the text"
        return f"ms predicted / measured: TTFT {self.ttft_s.describe(1e3)}{text}{itl}"


def check_request(check: PlanCheck, result: GenerationResult) -> RequestCheck | None:
    """Compare what a request that ran alone took; None where no rates are stored, or it got no token."""
    usage, timings = result.usage, result.timings
    if check.machine is None or not usage.completion_tokens:
        return None
    num_new = usage.prompt_tokens - usage.cached_tokens
    prefill = predict_prefill(check.planned, check.machine, 1, num_new, usage.cached_tokens, check.max_step_tokens)
    text_s = timings.tokenize_ms / 1e3
    ttft = Comparison(prefill.total_s, timings.ttft_ms / 1e3 - text_s)
    if usage.completion_tokens < 2:
        return RequestCheck(ttft, None, text_s)
    # The middle token stands for all.
    context = usage.prompt_tokens + 1 + usage.completion_tokens // 2
    decode = predict_decode(check.planned, check.machine, 1, context)
    return RequestCheck(ttft, Comparison(decode.total_s, timings.itl_ms.p50 / 1e3), text_s)
