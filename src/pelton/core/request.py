"""`Request`: one prompt with its parameters and its output so far. Only the scheduler changes one."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from pelton.core.cache_miss import CacheMiss
from pelton.core.outputs import TokenLogprobs
from pelton.core.sampling_params import SamplingParams
from pelton.core.token_constraint import TokenConstraint


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

    A lower `priority` runs sooner. Requests of one `tenant` share what a fair policy gives it. Only requests of one
    `cache_salt` reuse each other's K/V. A request with a `leader` (a further choice for the leader's prompt) waits
    until the leader's prompt is computed and then takes its K/V over. `num_cached_tokens` and `cache_miss` say what
    the first admission reused and why no more; `cache_miss` is None if all but the last prompt token was reused.
    `mirostat_mu` and `constraint` are the state of sampling; they survive a preemption, as the output does.
    `prompt_logprobs` grows with the prompt if `params` ask for it; its first entry is None, as nothing comes before the
    first token.
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
    cache_miss: CacheMiss | None = None
    constraint: TokenConstraint | None = None
    mirostat_mu: float | None = None
    prompt_logprobs: list[TokenLogprobs | None] = field(default_factory=list)
    # The scheduler's own: the order of arrival, the chained hashes of full blocks as far as they were needed, and how
    # many blocks the prefix index was told of.
    arrival_number: int = 0
    block_hashes: list[bytes] = field(default_factory=list)
    num_indexed_blocks: int = 0

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def rank(self) -> tuple[int, int]:
        """Order of service: the smaller one goes first. Unique among the requests of one scheduler."""
        return self.priority, self.arrival_number

    @property
    def is_prompt_computed(self) -> bool:
        """Whether the K/V of all prompt tokens are stored."""
        return self.num_computed_tokens >= len(self.prompt_token_ids)

    def get_token_ids(self, start: int, stop: int) -> list[int]:
        """Token ids of positions [start, stop) over prompt followed by output."""
        num_prompt = len(self.prompt_token_ids)
        ids = list(self.prompt_token_ids[start:stop])
        ids += self.output_token_ids[max(start - num_prompt, 0) : max(stop - num_prompt, 0)]
        return ids
