"""Log-probabilities of a prompt, as far as they concern scheduling: shorter chunks, and what a step adds.

Must not know where they come from. Entry points: `limit_prompt_chunk` when planning, `add_prompt_logprobs` afterwards.
"""

from __future__ import annotations

from pelton.core.request import Request
from pelton.core.step_plan import StepResult

# Every such token needs a row of logits (vocabulary x 4 bytes).
MAX_PROMPT_CHUNK = 64


def limit_prompt_chunk(request: Request, max_num_tokens: int) -> int:
    """Most tokens of a request to compute in one step: fewer while log-probabilities of its prompt are missing."""
    if not misses_prompt_logprobs(request):
        return max_num_tokens
    return min(max_num_tokens, MAX_PROMPT_CHUNK)


def misses_prompt_logprobs(request: Request) -> bool:
    """Whether the request asked for log-probabilities of its prompt and not all have come."""
    wants = request.params.prompt_logprobs is not None
    return wants and len(request.prompt_logprobs) < len(request.prompt_token_ids)


def add_prompt_logprobs(request: Request, result: StepResult) -> None:
    """Append what a step found. The first token of a prompt has none; tokens computed again are not added twice."""
    if request.params.prompt_logprobs is None:
        return
    if not request.prompt_logprobs:
        request.prompt_logprobs.append(None)
    request.prompt_logprobs.extend(result.prompt_logprobs.get(request.request_id, ()))
