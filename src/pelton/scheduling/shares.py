"""A request's share of a step: how many tokens it wants, what the plan says of it, and whether its new token ends it.

It must not know queues or blocks. Entry points: `plan_decode` and `plan_tokens`.
"""

from __future__ import annotations

from pelton.core.request import Request, RequestStatus
from pelton.core.step_plan import ScheduledRequest
from pelton.scheduling.prompt_logprobs import limit_prompt_chunk


def count_wanted(request: Request) -> int:
    """Tokens a request could compute in this step."""
    return limit_prompt_chunk(request, request.num_tokens - request.num_computed_tokens)


def plan_decode(request: Request) -> ScheduledRequest:
    """The share of a request with one token left to compute."""
    start = request.num_computed_tokens
    token_ids = request.output_token_ids[-1:] or request.get_token_ids(start, start + 1)
    return ScheduledRequest(request, token_ids, start, True, request.block_table)


def plan_tokens(request: Request, num_tokens: int) -> ScheduledRequest:
    """The share of a request that computes its next `num_tokens` tokens, and samples if these are all it has."""
    start = request.num_computed_tokens
    stop = start + num_tokens
    needs_sample = stop == request.num_tokens
    return ScheduledRequest(request, request.get_token_ids(start, stop), start, needs_sample, request.block_table)


def get_final_status(request: Request, token_id: int) -> RequestStatus | None:
    """What a request ends with after its newest token `token_id`; None if it goes on."""
    if token_id in request.eos_token_ids or token_id in request.params.stop_token_ids:
        return RequestStatus.STOPPED
    if len(request.output_token_ids) >= request.max_tokens:
        return RequestStatus.LENGTH_CAPPED
    return None
