"""`EngineStats`: what an engine counts, as plain data for metrics. Start there."""

from __future__ import annotations

from dataclasses import dataclass

from pelton.scheduling.stats import SchedulerStats


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A moment's requests, and counters since the start.

    `num_queued_requests` and `num_queued_tokens` (prompt tokens) wait for their first step; `num_unfinished` counts
    requests that run or wait, those with several choices once. `busy_s` are the seconds spent in steps, `model_s`
    and `sample_s` the parts of them in which the model and sampling ran; `prefill_s` is the part of `model_s` that went
    into prompts, as far as steps of both can be divided. `scheduler` is None before the first step.
    """

    num_unfinished: int = 0
    num_queued_requests: int = 0
    num_queued_tokens: int = 0
    num_started_requests: int = 0
    num_started_tokens: int = 0
    num_new_tokens: int = 0
    num_steps: int = 0
    busy_s: float = 0.0
    model_s: float = 0.0
    prefill_s: float = 0.0
    sample_s: float = 0.0
    scheduler: SchedulerStats | None = None

    @property
    def decode_s(self) -> float:
        """The part of `model_s` that did not go into prompts."""
        return max(self.model_s - self.prefill_s, 0.0)

    @property
    def python_s(self) -> float:
        """Seconds of the busy time outside the model and sampling: scheduling, batches, text, outputs."""
        return max(self.busy_s - self.model_s - self.sample_s, 0.0)

    @property
    def python_share(self) -> float:
        """Share (0 to 1) of the busy time outside the model and sampling: scheduling, batches, text, outputs."""
        return 1.0 - (self.model_s + self.sample_s) / self.busy_s if self.busy_s > 0 else 0.0
