"""What a scheduler's steps may hold (`SchedulerLimits`), and which requests it takes (`check_new_request`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pelton.core.errors import ContextLengthError, InvalidParameterError
from pelton.core.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """What a step may hold, and who goes first.

    `max_num_batched_tokens` bounds the prompt tokens of a step; requests with a single token left (decodes) come on
    top, at most `max_num_seqs` of them. `max_step_s`: see `StepBudget`. Without `use_kv_cache` every scheduled request
    computes its whole sequence from position 0, in one step however long it is; further requests join while the total
    stays within the bound.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    max_step_s: float | None = None
    policy: str = "fcfs"
    use_kv_cache: bool = True

    def __post_init__(self) -> None:
        limits = {"max_num_batched_tokens": self.max_num_batched_tokens, "max_num_seqs": self.max_num_seqs}
        for name, value in limits.items():
            if value < 1:
                raise InvalidParameterError(name, value, "at least 1")


def check_new_request(request: Request, unfinished: Mapping[str, Request], num_slots: int) -> None:
    """Refuse a request that cannot be served beside the `unfinished` ones, or not even alone.

    Raises `InvalidParameterError` for an id that is in use, an empty prompt, max_tokens below 1 or a leader that was
    not added before or has another prompt, and `ContextLengthError` for more tokens than `num_slots` hold.
    """
    if request.request_id in unfinished:
        raise InvalidParameterError("request_id", request.request_id, "an id that is not in use")
    num_prompt_tokens = len(request.prompt_token_ids)
    if num_prompt_tokens < 1:
        raise InvalidParameterError("prompt_token_ids", request.prompt_token_ids, "at least 1 token")
    if request.max_tokens < 1:
        raise InvalidParameterError("max_tokens", request.max_tokens, "at least 1")
    leader = request.leader
    if leader is not None and leader.arrival_number == 0:
        raise InvalidParameterError("leader", leader.request_id, "a request that has been added before")
    if leader is not None and leader.prompt_token_ids != request.prompt_token_ids:
        raise InvalidParameterError("leader", leader.request_id, "a request with the same prompt")
    # The last token is only sampled: its K/V are never stored.
    if num_prompt_tokens + request.max_tokens - 1 > num_slots:
        raise ContextLengthError(
            "prompt tokens + max_tokens",
            num_prompt_tokens + request.max_tokens,
            f"at most {num_slots + 1} (the KV cache has {num_slots} token slots)",
        )
