"""`OutputStream`: the outputs of one request of an `AsyncEngine`, as an asynchronous iterator. Start there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from pelton.core.errors import EngineBusyError
from pelton.core.outputs import GenerationResult, RequestOutput
from pelton.core.trace import Send
from pelton.engine.engine_thread import EngineThread
from pelton.engine.output_queue import OutputQueue, wake_all
from pelton.engine.prepare import PreparedRequest

# Prepares the request off the event loop, then says which thread runs it.
Prepare = Callable[[], Awaitable[tuple[PreparedRequest, EngineThread]]]


class _StreamClosed(Exception):  # noqa: N818  # tells a waiting reader of a fact, is never seen outside
    pass


class OutputStream(AsyncIterator[RequestOutput]):
    """Yields a request's outputs; the last one carries `result`. One reader at a time.

    Nothing happens before the first `__anext__` (or `start`). The request is aborted when the stream is closed, thrown
    away, or when the task that waits for an output is cancelled; blocks are free again before the engine's next step.
    """

    def __init__(self, prepare: Prepare) -> None:
        self._prepare = prepare
        self._queue = OutputQueue()
        self._thread: EngineThread | None = None
        self._key = ""
        self._is_starting = False
        self._is_over = False
        self._wants_deltas = True
        self._taken_s: float | None = None
        self.prompt_token_ids: tuple[int, ...] = ()
        self.request_id = ""

    async def start(self) -> OutputStream:
        """Encode, check and queue the request, unless that has been done; return self.

        Raises `InvalidParameterError`, `ContextLengthError`, `ChatTemplateError`, `EngineOverloadedError` or
        `EngineDeadError`. So a server can refuse a request before it has sent anything.
        """
        if self._thread is not None or self._is_over:
            return self
        if self._is_starting:
            raise EngineBusyError("another task is starting this stream; a stream has one reader")
        self._is_starting = True
        try:
            prepared, thread = await self._prepare()
            if self._is_over:  # closed meanwhile
                return self
            self._key = thread.submit(prepared, self._queue, is_streamed=self._wants_deltas)
            self._thread = thread
        except BaseException:
            self._is_over = True
            raise
        finally:
            self._is_starting = False
        self.prompt_token_ids = prepared.prompt.token_ids
        self.request_id = prepared.options.request_id or self._key
        return self

    async def __anext__(self) -> RequestOutput:
        self._note_sent()
        if self._is_over:
            raise StopAsyncIteration
        await self.start()
        if self._thread is None:  # closed while it was starting
            raise StopAsyncIteration
        try:
            output = await self._queue.get()
        except _StreamClosed:
            raise StopAsyncIteration from None
        except asyncio.CancelledError:
            self._abort()
            raise
        except BaseException:
            self._is_over = True
            raise
        if output.result is not None:
            self._is_over = True
        self._taken_s = time.perf_counter()
        return output

    def _note_sent(self) -> None:
        """The reader is done with the output it took last."""
        taken_s, self._taken_s = self._taken_s, None
        if taken_s is not None and self._queue.trace is not None:
            self._queue.trace.sends.append(Send(taken_s, time.perf_counter()))

    async def get_result(self) -> GenerationResult:
        """Read to the end and return the whole request. Cheaper than reading deltas if called first."""
        if self._thread is None:
            self._wants_deltas = False
        async for output in self:
            if output.result is not None:
                return output.result
        raise RuntimeError("the stream was read to its end, or closed, before get_result was called")

    async def aclose(self) -> None:
        """Abort the request if it is not finished; a task that waits for an output finds the stream at its end."""
        self._note_sent()
        self._abort()
        waiter = self._queue.fail(_StreamClosed())
        if waiter is not None:
            wake_all([waiter])

    async def __aenter__(self) -> OutputStream:
        return await self.start()

    async def __aexit__(self, *error: Any) -> None:  # Any: the three arguments of every __aexit__, unused
        await self.aclose()

    def __del__(self) -> None:
        self._abort()

    def _abort(self) -> None:
        is_over, self._is_over = self._is_over, True
        if not is_over and self._thread is not None:
            self._thread.abort(self._key)
