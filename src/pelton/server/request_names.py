"""Under which names a request's trace is found: the generation's id, the response's, the HTTP request's.

Start at `find_trace`.
"""

from __future__ import annotations

from pelton.core.trace import RequestTrace
from pelton.engine.trace_log import TraceLog

# What ids that the server makes begin with; the rest of them is the same.
_PREFIXES = ("chatcmpl-", "cmpl-", "msg_", "resp_", "req-")
# Names that clients sent with their requests (x-request-id): as many as are remembered, the last ones.
MAX_NUM_NAMES = 4096


class RequestNames:
    """Names that clients gave their requests, with the ids of the first generation of each. One event loop owns it."""

    def __init__(self) -> None:
        self._generation_ids: dict[str, str] = {}

    def add(self, name: str, generation_id: str) -> None:
        """A request called `name` begins; of several with one name the last is found."""
        self._generation_ids.pop(name, None)
        self._generation_ids[name] = generation_id
        if len(self._generation_ids) > MAX_NUM_NAMES:
            del self._generation_ids[next(iter(self._generation_ids))]

    def find_trace(self, log: TraceLog, name: str) -> RequestTrace | None:
        """The trace of the request that has `name` as one of its ids; None if there is none, or none any more."""
        candidates = [name]
        candidates += [f"gen-{name.removeprefix(prefix)}" for prefix in _PREFIXES if name.startswith(prefix)]
        if name in self._generation_ids:
            candidates.append(self._generation_ids[name])
        return next((trace for each in candidates if (trace := log.find_request(each)) is not None), None)
