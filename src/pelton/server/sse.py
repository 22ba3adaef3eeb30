"""Server-sent events: a stream that keeps a quiet connection alive, ends at a disconnect and reports late errors.

Start at `EventStream`. `run_until_disconnect` gives the same ending to answers that are not streamed. It knows bytes
and connections, not protocols: a route gives it finished frames.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pelton.server.errors import describe_error, make_openai_body
from pelton.server.json_text import dump_json

T = TypeVar("T")
Frames = AsyncGenerator[bytes, None]
ErrorFrame = Callable[[Exception], bytes]

KEEP_ALIVE_COMMENT = b": keep-alive\n\n"
DONE_FRAME = b"data: [DONE]\n\n"
CLIENT_GONE_STATUS = 499  # nginx's number for it; only the log shows it


class ClientGoneError(Exception):
    """The client closed the connection; nobody reads what is answered."""


def make_frame(data: bytes, event: str | None = None) -> bytes:
    """One event; `data` is one line of JSON."""
    head = b"" if event is None else b"event: " + event.encode() + b"\n"
    return head + b"data: " + data + b"\n\n"


def make_error_frame(error: Exception) -> bytes:
    """An error after the stream has begun, in the OpenAI shape; no `[DONE]` follows it."""
    return make_frame(dump_json(make_openai_body(describe_error(error))))


class EventStream(Response):
    """Sends the frames of a generator as they come.

    `frames` is closed whatever happens, which aborts the requests behind it. After `keep_alive_s` without a frame a
    comment is sent (nothing if `keep_alive` is empty). An error becomes the frame of `make_error` and ends the stream.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: Frames | StartedFrames,
        *,
        keep_alive_s: float,
        make_error: ErrorFrame = make_error_frame,
        keep_alive: bytes = KEEP_ALIVE_COMMENT,
        media_type: str | None = None,
    ) -> None:
        super().__init__(b"", media_type=media_type)
        self._frames = frames
        self._keep_alive_s = keep_alive_s
        self._keep_alive = keep_alive
        self._make_error = make_error
        self._last_sent_s = 0.0

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Headers of a body whose length nobody knows, which proxies must not hold back."""
        super().init_headers(headers)
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self.raw_headers += [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the stream to its end or to the disconnect."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._last_sent_s = time.monotonic()
        sender = asyncio.create_task(self._send_frames(send))
        helpers = [asyncio.create_task(_wait_for_disconnect(receive))]
        if self._keep_alive:
            helpers.append(asyncio.create_task(self._keep_connection_alive(send)))
        try:
            await asyncio.wait([sender, *helpers], return_when=asyncio.FIRST_COMPLETED)
        finally:
            has_ended = sender.done()
            await _cancel(sender, *helpers)
            await self._frames.aclose()  # the sender may have been cancelled before it ran
        if has_ended:
            sender.result()  # an error of ours is for the server's log
        else:
            scope.setdefault("state", {}).setdefault("log_fields", {})["client_gone"] = True

    async def _send_frames(self, send: Send) -> None:
        try:
            async for frame in self._frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
                self._last_sent_s = time.monotonic()
        except Exception as error:  # the request's boundary: a client must hear of whatever failed
            await send({"type": "http.response.body", "body": self._make_error(error), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_connection_alive(self, send: Send) -> None:
        while True:
            silent_s = time.monotonic() - self._last_sent_s
            if silent_s < self._keep_alive_s:
                await asyncio.sleep(self._keep_alive_s - silent_s)
                continue
            self._last_sent_s = time.monotonic()
            await send({"type": "http.response.body", "body": self._keep_alive, "more_body": True})


class StartedFrames:
    """Frames whose first one is awaited already; iterates and closes like the generator it wraps."""

    def __init__(self, first: asyncio.Future[bytes], frames: Frames) -> None:
        self._first: asyncio.Future[bytes] | None = first
        self._frames = frames

    def __aiter__(self) -> StartedFrames:
        return self

    async def __anext__(self) -> bytes:
        if self._first is None:
            return await anext(self._frames)
        first, self._first = self._first, None
        try:
            return await first
        except asyncio.CancelledError:
            await _cancel(first)
            raise

    async def aclose(self) -> None:
        """Cancel what is awaited and close the generator."""
        if self._first is not None:
            await _cancel(self._first)
            self._first = None
        await self._frames.aclose()


async def start_stream(request: Request, frames: Frames, max_wait_s: float) -> StartedFrames:
    """Wait for the first frame, at most `max_wait_s`; errors until then are raised here, with a status of their own.

    Without this every refusal would be an error inside a stream of status 200. Raises `ClientGoneError` at a
    disconnect.
    """
    first = asyncio.ensure_future(anext(frames))
    listener = asyncio.ensure_future(_wait_for_disconnect(request.receive))
    started = StartedFrames(first, frames)
    is_started = False
    try:
        await asyncio.wait([first, listener], timeout=max_wait_s, return_when=asyncio.FIRST_COMPLETED)
        if listener.done() and not first.done():
            raise ClientGoneError
        if first.done() and (error := first.exception()) is not None and not isinstance(error, StopAsyncIteration):
            raise error
        is_started = True
    finally:
        await _cancel(listener)
        if not is_started:
            await started.aclose()
    return started


async def run_until_disconnect(request: Request, work: Coroutine[object, object, T]) -> T:
    """Run `work` to its result; cancel it and raise `ClientGoneError` if the client closes the connection."""
    worker = asyncio.ensure_future(work)
    listener = asyncio.ensure_future(_wait_for_disconnect(request.receive))
    try:
        await asyncio.wait([worker, listener], return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientGoneError
    finally:
        await _cancel(worker, listener)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:  # Any: what they would return is not looked at
    """Cancel tasks and wait for their end; what they raise is dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
