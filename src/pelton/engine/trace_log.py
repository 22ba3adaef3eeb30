"""`TraceLog`: the traces of an engine, which its thread writes and anybody may read. Start there.

The last steps are kept, all unfinished requests, and the last `num_kept` finished ones, or fewer if they were long.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque

from pelton.core.trace import LoadSample, RequestTrace, StepTrace

# A minute or more of steps; 100 bytes each, and 24 per sequence in it.
NUM_KEPT_STEPS = 8192
# Steps, tokens and sends of all finished requests that are kept, whatever their number; about 300 bytes each.
MAX_KEPT_EVENTS = 200_000
# Eight minutes of samples while the engine is busy.
NUM_KEPT_SAMPLES = 512


class TraceLog:
    """What was recorded. Every method may be called from any thread.

    `num_finished` counts all finished requests, those that are no longer kept too.
    """

    def __init__(self, num_kept: int) -> None:
        self.num_kept = num_kept
        self.num_finished = 0
        self._lock = threading.Lock()
        self._steps: deque[StepTrace] = deque(maxlen=NUM_KEPT_STEPS)
        self._samples: deque[LoadSample] = deque(maxlen=NUM_KEPT_SAMPLES)
        self._live: dict[RequestTrace, None] = {}
        # With the number of events of each.
        self._finished: deque[tuple[RequestTrace, int]] = deque()
        self._num_events = 0
        self._by_name: dict[str, RequestTrace] = {}

    def add_request(self, trace: RequestTrace) -> None:
        """A request has come. Of several with one name the last one is found by it."""
        with self._lock:
            self._live[trace] = None
            self._by_name[trace.request_id] = trace

    def add_step(self, step: StepTrace) -> None:
        """A step has been computed."""
        with self._lock:
            self._steps.append(step)

    def add_sample(self, sample: LoadSample) -> None:
        """The load was read."""
        with self._lock:
            self._samples.append(sample)

    def finish_request(self, trace: RequestTrace) -> None:
        """A request has ended; the oldest finished one may be forgotten for it."""
        with self._lock:
            self._live.pop(trace, None)
            self.num_finished += 1
            num_events = len(trace.steps) + trace.num_output_tokens + len(trace.sends)
            self._finished.append((trace, num_events))
            self._num_events += num_events
            while len(self._finished) > self.num_kept or (
                self._num_events > MAX_KEPT_EVENTS and len(self._finished) > 1
            ):
                old, num_events = self._finished.popleft()
                self._num_events -= num_events
                if self._by_name.get(old.request_id) is old:
                    del self._by_name[old.request_id]

    def find_request(self, request_id: str) -> RequestTrace | None:
        """The request of that name; None if there was none, or it is no longer kept."""
        with self._lock:
            found = self._by_name.get(request_id)
            if found is None:  # unless an earlier one of that name outlasted it
                kept = (*self._live, *(trace for trace, _ in self._finished))
                found = next((trace for trace in kept if trace.request_id == request_id), None)
            return found

    def list_live(self) -> list[RequestTrace]:
        """Unfinished requests, oldest first."""
        with self._lock:
            return list(self._live)

    def list_finished(self) -> list[RequestTrace]:
        """Finished requests that are kept, oldest first."""
        with self._lock:
            return [trace for trace, _ in self._finished]

    def list_steps(self, after: int = 0, limit: int | None = None) -> list[StepTrace]:
        """Steps with numbers above `after` that are kept, oldest first; the last `limit` of them."""
        with self._lock:
            steps = self._steps
            num_wanted = 0 if not steps else min(max(steps[-1].number - after, 0), len(steps))
            if limit is not None:
                num_wanted = min(num_wanted, limit)
            return list(itertools.islice(reversed(steps), num_wanted))[::-1]

    def list_samples(self) -> list[LoadSample]:
        """Readings of the load that are kept, oldest first."""
        with self._lock:
            return list(self._samples)
