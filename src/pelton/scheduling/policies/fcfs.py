"""`FcfsPolicy`: first come, first served within a priority; lower priorities run sooner."""

from __future__ import annotations

from collections.abc import Sequence

from pelton.core.request import Request
from pelton.scheduling.policies.base import Turn, WaitingQueue


class FcfsPolicy:
    """Order of service is (priority, arrival), for waiting and for running requests alike.

    Nobody overtakes: a request that finds no room holds back those behind it. The last one in order is preempted
    first, so the first one never is, and the engine always moves.
    """

    def __init__(self) -> None:
        self._queue = WaitingQueue()
        self._prefilling: list[Request] = []
        self._next = 0

    @property
    def num_waiting(self) -> int:
        """Requests that wait for admission."""
        return len(self._queue)

    def add_waiting(self, request: Request) -> None:
        """Queue a request by its rank."""
        self._queue.push(request)

    def remove_waiting(self, request: Request) -> None:
        """Drop a request that is finished."""
        self._queue.discard()

    def peek_waiting(self) -> Request | None:
        """The first by rank."""
        return self._queue.peek()

    def pop_waiting(self, request: Request) -> None:
        """Take the first one off."""
        self._queue.pop(request)

    def start_step(self, decodes: Sequence[Request], prefilling: Sequence[Request]) -> None:
        """Remember who has prompt tokens left."""
        self._prefilling = list(prefilling)
        self._next = 0

    def next_turn(self, can_admit: bool) -> Turn | None:
        """The lower rank of the first running and the first waiting request."""
        running = self._prefilling[self._next] if self._next < len(self._prefilling) else None
        waiting = self._queue.peek() if can_admit else None
        if waiting is None or (running is not None and running.rank < waiting.rank):
            return None if running is None else Turn(running)
        return Turn(waiting)

    def grant(self, request: Request, num_tokens: int, is_done: bool) -> None:
        """Go on to the next one; a request that is not done has used the whole budget up."""
        if self._next < len(self._prefilling) and self._prefilling[self._next] is request:
            self._next += 1

    def refuse(self, request: Request) -> bool:
        """Nobody overtakes."""
        return False

    def pick_victim(self, running: Sequence[Request]) -> Request:
        """The last one in order: lowest priority, then newest."""
        return running[-1]
