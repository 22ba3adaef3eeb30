"""`OutputQueue`: outputs of one request on their way from the engine thread to one reader in an event loop.

A reader that is slow finds one output per choice, merged of all that came meanwhile: ids, text and log-probabilities
are complete, only their cut into pieces is coarser. So the queue never holds more than the request's own output,
nothing is dropped, and the engine thread never waits. Start at `OutputQueue.put` and `OutputQueue.get`.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pelton.core.outputs import RequestOutput
from pelton.core.trace import RequestTrace


class Waiter(NamedTuple):
    """A reader that waits: its event loop and the future to be set."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


class OutputQueue:
    """Written by one thread, read by one coroutine at a time, whatever loop it runs in."""

    __slots__ = ("_error", "_lock", "_pending", "_waiter", "trace")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[int, list[RequestOutput]] = {}
        self._error: BaseException | None = None
        self._waiter: Waiter | None = None
        # Of the request, once the engine has taken it over.
        self.trace: RequestTrace | None = None

    def put(self, output: RequestOutput) -> Waiter | None:
        """Add an output; return the reader that the caller must wake (`wake_all`), if one waits."""
        with self._lock:
            pending = self._pending.setdefault(output.index, [])
            pending.append(output)
            if output.result is not None:
                # The request's last output must come last, behind what other choices have pending.
                self._pending[output.index] = self._pending.pop(output.index)
            return self._take_waiter()

    def fail(self, error: BaseException) -> Waiter | None:
        """Let the reader see `error` after what is pending; return the reader to wake, as `put` does."""
        with self._lock:
            self._error = error
            return self._take_waiter()

    async def get(self) -> RequestOutput:
        """Wait for the next output. Raises what `fail` was given, each time from then on."""
        while True:
            with self._lock:
                if self._pending:
                    return _merge(self._pending.pop(next(iter(self._pending))))
                if self._error is not None:
                    raise self._error
                loop = asyncio.get_running_loop()
                future: asyncio.Future[None] = loop.create_future()
                self._waiter = Waiter(loop, future)
            try:
                await future
            finally:
                with self._lock:
                    self._waiter = None

    def _take_waiter(self) -> Waiter | None:
        waiter, self._waiter = self._waiter, None
        return waiter


def wake_all(waiters: Iterable[Waiter]) -> None:
    """Wake readers from another thread, with one call per event loop; those whose loop is closed are left alone."""
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for loop, future in waiters:
        by_loop.setdefault(loop, []).append(future)
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set_all, futures)
        except RuntimeError:  # the loop is closed, so nobody can be waiting in it
            continue


def _set_all(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _merge(outputs: Sequence[RequestOutput]) -> RequestOutput:
    """One output that says what several of one choice said, one after the other."""
    last = outputs[-1]
    if len(outputs) == 1:
        return last
    return RequestOutput(
        request_id=last.request_id,
        new_token_ids=tuple(itertools.chain.from_iterable(output.new_token_ids for output in outputs)),
        text_delta="".join(output.text_delta for output in outputs),
        logprobs=tuple(itertools.chain.from_iterable(output.logprobs for output in outputs)),
        finish_reason=last.finish_reason,
        usage=last.usage,
        timings=last.timings,
        result=last.result,
        index=last.index,
        stop_reason=last.stop_reason,
        error=last.error,
        seed=last.seed,
    )
