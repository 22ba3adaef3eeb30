"""`RequestState`: what the engine keeps of one choice of a request beside the scheduler: its text, times, result.

It must not decide what runs next; it only says, through `finish_reason`, that the text has come to a stop string.
Entry point: `RequestState.push`.
"""

from __future__ import annotations

import math

from pelton.core.outputs import Choice, TokenLogprobs
from pelton.core.request import Request, RequestStatus
from pelton.core.step_plan import SampledToken
from pelton.text.detokenizer import IncrementalDetokenizer
from pelton.text.stop import StopStringMatcher
from pelton.text.tokenizer import Tokenizer


class RequestState:
    """Turns the tokens of one choice into text deltas and, at the end, into a `Choice`.

    The token that ends a choice (end of turn, stop token id) is in `token_ids` and in the usage but adds no text.
    A stop string is cut out of the text; the tokens it came from stay in `token_ids`.
    """

    __slots__ = (
        "_detokenizer",
        "_logprobs",
        "_matcher",
        "_text_parts",
        "error",
        "finish_reason",
        "request",
        "token_times_s",
    )

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self.request = request
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.token_times_s: list[float] = []
        self._detokenizer = IncrementalDetokenizer(tokenizer, request.prompt_token_ids)
        self._matcher = StopStringMatcher(request.params.stop) if request.params.stop else None
        self._text_parts: list[str] = []
        self._logprobs: list[TokenLogprobs] = []

    @property
    def stop_reason(self) -> str | int | None:
        """The stop string or stop token id that ended the choice, else None."""
        if self.finish_reason != RequestStatus.STOPPED.value:
            return None
        if self._matcher is not None and self._matcher.matched is not None:
            return self._matcher.matched
        last = self.request.output_token_ids[-1]
        return last if last in self.request.params.stop_token_ids else None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text_parts)

    def push(self, sampled: SampledToken, now_s: float) -> str:
        """Take a token computed at `now_s` (`time.perf_counter()`) and return the text that may be shown now.

        Sets `finish_reason` when the scheduler has finished the request, or when a stop string is complete: then the
        caller must finish the request in the scheduler.
        """
        self.token_times_s.append(now_s)
        if sampled.logprobs is not None:
            self._logprobs.append(sampled.logprobs)
        status = self.request.status
        delta = "" if status is RequestStatus.STOPPED else self._match(self._detokenizer.push((sampled.token_id,)))
        if status is not RequestStatus.RUNNING and self.finish_reason is None:
            return self._keep(delta) + self.end(status.value)
        return self._keep(delta)

    def end(self, finish_reason: str, error: str | None = None) -> str:
        """End the choice; return the text that was held back and may be shown after all."""
        delta = self._match(self._detokenizer.flush())
        if self.finish_reason is None:
            delta += self._matcher.flush() if self._matcher is not None else ""
            self.finish_reason = finish_reason
            self.error = error
        return self._keep(delta)

    def compute_mean_logprob(self) -> float:
        """Mean log-probability per token; minus infinity for a choice that failed or has none."""
        if self.finish_reason in (RequestStatus.FAILED.value, RequestStatus.ABORTED.value) or not self._logprobs:
            return -math.inf
        return math.fsum(entry.logprob for entry in self._logprobs) / len(self._logprobs)

    def make_choice(self, index: int, *, with_logprobs: bool) -> Choice:
        """The finished choice."""
        assert self.finish_reason is not None, f"{self.request.request_id} is not finished"
        has_logprobs = self.request.params.logprobs is not None
        return Choice(
            index=index,
            text=self.text,
            token_ids=tuple(self.request.output_token_ids),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            logprobs=tuple(self._logprobs) if has_logprobs and with_logprobs else None,
            seed=self.request.seed,
            cumulative_logprob=math.fsum(entry.logprob for entry in self._logprobs) if has_logprobs else None,
            error=self.error,
        )

    def _keep(self, delta: str) -> str:
        if delta:
            self._text_parts.append(delta)
        return delta

    def _match(self, text: str) -> str:
        if self._matcher is None or not text:
            return text
        safe, has_stopped = self._matcher.push(text)
        if has_stopped:
            self.finish_reason = RequestStatus.STOPPED.value
        return safe
