"""`SlowHeads`: closes connections on which the head of a request does not arrive. `serve.py` calls it now and then.

uvicorn closes connections that are quiet between two requests, but neither one that has never sent a whole head nor one
that has begun with the next. It knows what uvicorn's HTTP protocols show of themselves, and nothing of requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol


class Cycle(Protocol):
    """A request and its answer, as uvicorn's HTTP protocols keep it."""

    response_complete: bool


class Connection(Protocol):
    """What uvicorn's HTTP protocols have in common; the timer runs while they are quiet between two requests."""

    cycle: Cycle | None
    transport: asyncio.Transport
    timeout_keep_alive_task: asyncio.TimerHandle | None


class SlowHeads:
    """Remembers since when connections wait for a head; `timeout_s` is the longest they may."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._waiting: dict[Connection, tuple[Cycle | None, float]] = {}

    def close_late(self, connections: Iterable[Connection], now_s: float) -> None:
        """Close those of all `connections` that have waited for too long at `now_s`; nothing is answered."""
        before, self._waiting = self._waiting, {}
        for connection in connections:
            cycle = connection.cycle
            is_answering = cycle is not None and not cycle.response_complete
            if is_answering or connection.timeout_keep_alive_task is not None:
                continue
            last_cycle, since_s = before.get(connection, (cycle, now_s))
            if last_cycle is not cycle:  # a whole request has come in between
                since_s = now_s
            self._waiting[connection] = cycle, since_s
            if now_s - since_s >= self.timeout_s:
                connection.transport.close()
