"""`RequestState`: what the engine keeps of one request beside the scheduler: its text, token times and results.

It must not decide what runs next; it only says, through `finish_reason`, that the text has come to a stop string.
Entry point: `RequestState.push`.
"""

from __future__ import annotations

import time

from pelton.core.outputs import GenerationResult, RequestOutput, TokenLogprobs, Usage
from pelton.core.request import Request, RequestStatus
from pelton.core.step_plan import SampledToken
from pelton.engine.latency import make_timings
from pelton.text.detokenizer import IncrementalDetokenizer
from pelton.text.stop import StopStringMatcher
from pelton.text.tokenizer import Tokenizer


class RequestState:
    """Turns the tokens of one request into text deltas and, at the end, into its result.

    The token that ends a request (end of turn, stop token id) is in `token_ids` and in the usage but adds no text.
    A stop string is cut out of the text; the tokens it came from stay in `token_ids`.
    """

    __slots__ = (
        "_detokenizer",
        "_logprobs",
        "_matcher",
        "_text_parts",
        "_token_times_s",
        "_tokenize_s",
        "finish_reason",
        "request",
    )

    def __init__(self, request: Request, tokenizer: Tokenizer, *, tokenize_s: float) -> None:
        self.request = request
        self.finish_reason: str | None = None
        self._tokenize_s = tokenize_s
        self._detokenizer = IncrementalDetokenizer(tokenizer, request.prompt_token_ids)
        self._matcher = StopStringMatcher(request.params.stop) if request.params.stop else None
        self._text_parts: list[str] = []
        self._token_times_s: list[float] = []
        self._logprobs: list[TokenLogprobs] = []

    def push(self, sampled: SampledToken) -> str:
        """Take a new token, just computed, and return the text that may be shown now.

        Sets `finish_reason` when the scheduler has finished the request, or when a stop string is complete: then the
        caller must finish the request in the scheduler.
        """
        self._token_times_s.append(time.perf_counter())
        if sampled.logprobs is not None:
            self._logprobs.append(sampled.logprobs)
        status = self.request.status
        delta = "" if status is RequestStatus.STOPPED else self._match(self._detokenizer.push((sampled.token_id,)))
        if status is not RequestStatus.RUNNING and self.finish_reason is None:
            delta += self._match(self._detokenizer.flush())
            if self.finish_reason is None:
                delta += self._matcher.flush() if self._matcher is not None else ""
                self.finish_reason = status.value
        if delta:
            self._text_parts.append(delta)
        return delta

    def make_result(self, *, load_ms: float, block_size: int, kv_bytes_per_block: int) -> GenerationResult:
        """The finished request; `kv_cache_bytes` counts the blocks that held its K/V at the end."""
        request = self.request
        assert self.finish_reason is not None, f"{request.request_id} is not finished"
        num_blocks = -(-request.num_computed_tokens // block_size)
        return GenerationResult(
            request_id=request.request_id,
            text="".join(self._text_parts),
            token_ids=tuple(request.output_token_ids),
            prompt_token_ids=request.prompt_token_ids,
            finish_reason=self.finish_reason,
            usage=Usage(
                prompt_tokens=len(request.prompt_token_ids),
                completion_tokens=len(request.output_token_ids),
                cached_tokens=request.num_cached_tokens,
            ),
            timings=make_timings(request, self._token_times_s, tokenize_s=self._tokenize_s, load_ms=load_ms),
            kv_cache_bytes=num_blocks * kv_bytes_per_block,
            seed=request.seed,
            logprobs=None if request.params.logprobs is None else tuple(self._logprobs),
        )

    def _match(self, text: str) -> str:
        if self._matcher is None:
            return text
        safe, has_stopped = self._matcher.push(text)
        if has_stopped:
            self.finish_reason = RequestStatus.STOPPED.value
        return safe


def make_output(
    request: Request, sampled: SampledToken, delta: str, result: GenerationResult | None = None
) -> RequestOutput:
    """One streamed piece of a request; `result` belongs to the last one."""
    return RequestOutput(
        request_id=request.request_id,
        new_token_ids=(sampled.token_id,),
        text_delta=delta,
        logprobs=() if sampled.logprobs is None else (sampled.logprobs,),
        finish_reason=None if result is None else result.finish_reason,
        usage=None if result is None else result.usage,
        timings=None if result is None else result.timings,
        result=result,
    )
