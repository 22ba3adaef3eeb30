"""`SchedulingPolicy`: the order in which requests get prompt tokens, are admitted and are preempted.

A policy keeps the waiting requests and deals out turns; the scheduler decides how many tokens a turn gets and whether
a waiting request finds room. A policy knows no blocks and no time.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pelton.core.request import Request, RequestStatus


@dataclass(frozen=True, slots=True)
class Turn:
    """`request` is next and may have up to `max_tokens` tokens of its prompt in this turn (None: no limit).

    A request that waits must be admitted first.
    """

    request: Request
    max_tokens: int | None = None


class SchedulingPolicy(Protocol):
    """In a step: `start_step`, then `next_turn` while there is budget, each answered by `grant` or `refuse`."""

    @property
    def num_waiting(self) -> int:
        """Requests that wait for admission."""

    def add_waiting(self, request: Request) -> None:
        """Take a request that waits for admission: new, or preempted."""

    def remove_waiting(self, request: Request) -> None:
        """Drop a waiting request that was finished from outside; its status says so already."""

    def peek_waiting(self) -> Request | None:
        """The waiting request that should be admitted first."""

    def pop_waiting(self, request: Request) -> None:
        """The scheduler has admitted what `peek_waiting` or `next_turn` gave."""

    def start_step(self, decodes: Sequence[Request], prefilling: Sequence[Request]) -> None:
        """Begin a step in which `decodes` get a token each and `prefilling` have prompt tokens left; both by rank."""

    def next_turn(self, can_admit: bool) -> Turn | None:
        """Who is next; without `can_admit` only a running request. None if nobody is left."""

    def grant(self, request: Request, num_tokens: int, is_done: bool) -> None:
        """The request of the last turn got tokens; with `is_done` it wants no more in this step."""

    def refuse(self, request: Request) -> bool:
        """The request of the last turn found no room; return whether others may be admitted before it."""

    def pick_victim(self, running: Sequence[Request]) -> Request:
        """Which of the running requests (by rank, at least one) gives its blocks back."""


class WaitingQueue:
    """Waiting requests by rank. Removing one that is finished costs nothing now: it is skipped when its turn comes."""

    __slots__ = ("_heap", "_num_live")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Request]] = []
        self._num_live = 0

    def __len__(self) -> int:
        return self._num_live

    def push(self, request: Request) -> None:
        """Add a request."""
        heapq.heappush(self._heap, (*request.rank, request))
        self._num_live += 1

    def peek(self) -> Request | None:
        """The first request, or None."""
        while self._heap and self._heap[0][2].status is not RequestStatus.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def pop(self, request: Request) -> None:
        """Take off the first request, which must be `request`."""
        assert self.peek() is request, f"{request.request_id} is not the first to wait"
        heapq.heappop(self._heap)
        self._num_live -= 1

    def discard(self) -> None:
        """One of the requests has been finished; its status is no longer WAITING."""
        self._num_live -= 1
        # Rebuilt when most of it is dead, so that the cost per removal stays constant.
        if len(self._heap) > 2 * self._num_live + 64:
            self._heap = [item for item in self._heap if item[2].status is RequestStatus.WAITING]
            heapq.heapify(self._heap)
