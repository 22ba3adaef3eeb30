"""The table of requests in progress, which `/v1/requests` shows. One event loop owns it. Start at `LiveRequests`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pelton.core.trace import RequestTrace


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One prompt being worked on. Times are seconds of `time.perf_counter()`.

    `cut` ends the request from outside, when the server closes.
    """

    request_id: str
    route: str
    caller: str
    is_stream: bool
    num_choices: int
    arrival_s: float
    cut: Callable[[], None]
    http_request_id: str
    num_prompt_tokens: int | None = None
    num_output_tokens: int = 0
    first_token_s: float | None = None
    last_token_s: float | None = None

    def note_tokens(self, num_tokens: int, now_s: float) -> None:
        """Count new tokens, which came at `now_s`."""
        self.last_token_s = now_s
        if self.first_token_s is None:
            self.first_token_s = now_s
        self.num_output_tokens += num_tokens

    def describe(self, trace: RequestTrace | None) -> dict[str, object]:
        """One row of the table; ages in milliseconds. `trace` is the engine's record, None before it has one."""
        now_s = time.perf_counter()
        return {
            "request_id": self.request_id,
            "http_request_id": self.http_request_id,
            "has_trace": trace is not None,
            "route": self.route,
            "caller": self.caller,
            "stream": self.is_stream,
            "state": _get_state(trace),
            "n": self.num_choices,
            "prompt_tokens": self.num_prompt_tokens,
            "cached_tokens": 0 if trace is None else trace.num_cached_tokens,
            "output_tokens": self.num_output_tokens,
            "age_ms": (now_s - self.arrival_s) * 1e3,
            "ttft_ms": None if self.first_token_s is None else (self.first_token_s - self.arrival_s) * 1e3,
            "since_last_token_ms": None if self.last_token_s is None else (now_s - self.last_token_s) * 1e3,
        }


def _get_state(trace: RequestTrace | None) -> str:
    if trace is None:
        return "queued"
    # The engine is done, but its last tokens have not been taken yet.
    return "decoding" if trace.is_finished else trace.state


class LiveRequests:
    """All requests in progress, in order of arrival."""

    def __init__(self) -> None:
        self._requests: dict[LiveRequest, None] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[LiveRequest]:
        return iter(list(self._requests))

    def add(self, request: LiveRequest) -> None:
        """Put a request into the table."""
        self._requests[request] = None

    def remove(self, request: LiveRequest) -> None:
        """Take a request out; it may have been taken out already."""
        self._requests.pop(request, None)

    def cut_all(self) -> None:
        """End every request: its client gets an error."""
        for request in self:
            request.cut()
