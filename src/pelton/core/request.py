"""`Request`: one prompt with its parameters and its output so far. Only the scheduler changes one."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from pelton.core.outputs import TokenLogprobs
from pelton.core.sampling_params import SamplingParams


class RequestStatus(enum.Enum):
    """Where a request is in its life. Values after RUNNING mean it is finished."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPED = "stop"
    LENGTH_CAPPED = "length"
    ABORTED = "abort"
    FAILED = "error"

    @property
    def is_finished(self) -> bool:
        """Whether the request will not be scheduled again."""
        return self not in (RequestStatus.WAITING, RequestStatus.RUNNING)


@dataclass(slots=True, eq=False)
class Request:
    """Mutable state of one request.

    `num_computed_tokens` counts tokens (prompt then output) whose K/V are stored; the scheduler moves it towards
    `num_tokens`. `block_table` lists the KV blocks in order. Times are seconds of `time.perf_counter()`;
    `first_scheduled_s` is unset until the first step that contains the request.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    max_tokens: int
    seed: int
    eos_token_ids: frozenset[int]
    arrival_s: float
    status: RequestStatus = RequestStatus.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    block_table: list[int] = field(default_factory=list)
    first_scheduled_s: float | None = None
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    leader: Request | None = None
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    def get_token_ids(self, start: int, stop: int) -> list[int]:
        """Token ids of positions [start, stop) over prompt followed by output."""
        num_prompt = len(self.prompt_token_ids)
        ids = list(self.prompt_token_ids[start:stop])
        ids += self.output_token_ids[max(start - num_prompt, 0) : max(stop - num_prompt, 0)]
        return ids
