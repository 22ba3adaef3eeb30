"""What one engine step does (`StepPlan`) and what came of it (`StepResult`): plain data between layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pelton.core.outputs import TokenLogprobs
from pelton.core.request import Request
from pelton.core.trace import WaitCause


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's share of a step: compute `token_ids`, which sit at positions from `start` on.

    `needs_sample` is set when these are the last known tokens, so that a new one follows from the step. `block_table`
    is the request's as it was planned: a request that is finished between plan and step has given its own back.
    """

    request: Request
    token_ids: list[int]
    start: int
    needs_sample: bool
    block_table: list[int]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Requests that advance in this step, in batch order.

    `block_copies` are (from, to) pairs of KV blocks to copy before the step, one after the other in this order. The
    rest is for traces: who was preempted for this step, why a waiting request was not admitted (None: none was held
    up), and the seconds that a step of its decodes alone is expected to take, if it has prompt tokens beside them.
    """

    scheduled: tuple[ScheduledRequest, ...]
    block_copies: tuple[tuple[int, int], ...] = ()
    preempted: tuple[Request, ...] = ()
    held_up_by: WaitCause | None = None
    decode_alone_s: float | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens computed by the step."""
        return sum(len(s.token_ids) for s in self.scheduled)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A new token of one request; `logprobs` and mirostat's bound for the next token only if the request has them."""

    token_id: int
    logprobs: TokenLogprobs | None
    mirostat_mu: float | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """New tokens by request id. `model_s` and `sample_s` are seconds spent in the model and in sampling.

    `failed` says of requests that cannot go on why; they have no token. `prompt_logprobs` continues a request's
    `prompt_logprobs` by what this step computed of its prompt.
    """

    sampled: Mapping[str, SampledToken]
    model_s: float
    sample_s: float
    failed: Mapping[str, str] = field(default_factory=dict)
    prompt_logprobs: Mapping[str, list[TokenLogprobs]] = field(default_factory=dict)
