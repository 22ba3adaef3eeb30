"""A small HTTP client for streams, made to cost little beside the server it measures. Start at `stream_request`.

HTTP/1.1 over asyncio, one connection per request, chunked or plain bodies. It knows events, not load.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pelton.core.errors import InvalidParameterError

_MAX_LINE_BYTES = 2**24


@dataclass(frozen=True, slots=True)
class Target:
    """A server's base URL, taken apart."""

    host: str
    port: int
    path: str
    context: ssl.SSLContext | None

    @classmethod
    def parse(cls, url: str) -> Target:
        """Read http(s)://host[:port][/path]; raises `InvalidParameterError`."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise InvalidParameterError("url", url, "http://HOST:PORT/v1") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise InvalidParameterError("url", url, "http://HOST:PORT/v1")
        is_tls = parts.scheme == "https"
        context = ssl.create_default_context() if is_tls else None
        return cls(parts.hostname, port or (443 if is_tls else 80), parts.path.rstrip("/"), context)


@dataclass(slots=True)
class RequestTrace:
    """What one request's stream looked like. Times are seconds of `time.perf_counter()`.

    `event_times_s` are the times of events with text; `num_output_tokens` is the server's count, or else the number of
    these events. `error` is None for a stream that came to its end.
    """

    start_s: float
    end_s: float = 0.0
    event_times_s: list[float] = field(default_factory=list)
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        """Seconds to the first text; of failed requests there may be none."""
        return self.event_times_s[0] - self.start_s

    @property
    def tpot_s(self) -> float:
        """Mean seconds per token after the first."""
        num_later = self.num_output_tokens - 1
        return (self.event_times_s[-1] - self.event_times_s[0]) / num_later if num_later > 0 else 0.0


class ResponseError(Exception):
    """The server answered with something else than a stream."""


async def stream_request(
    target: Target, path: str, body: Mapping[str, object], headers: Mapping[str, str], timeout_s: float
) -> RequestTrace:
    """Send a request with `stream: true` and follow its answer to the end. Never raises for what a server does."""
    trace = RequestTrace(time.perf_counter())
    try:
        await asyncio.wait_for(_follow(target, path, body, headers, trace), timeout_s)
    except asyncio.TimeoutError:
        trace.error = f"no end within {timeout_s:g} s"
    except (OSError, ResponseError, asyncio.IncompleteReadError, ValueError) as error:
        trace.error = str(error) if isinstance(error, ResponseError) else f"{type(error).__name__}: {error}"
    trace.end_s = time.perf_counter()
    if trace.error is None and not trace.event_times_s:
        trace.error = "a stream without text"
    if trace.num_output_tokens == 0:
        trace.num_output_tokens = len(trace.event_times_s)
    return trace


async def get_json(target: Target, path: str, headers: Mapping[str, str], timeout_s: float) -> object:
    """GET a JSON document; raises OSError, `ResponseError` or ValueError."""

    async def get() -> bytes:
        reader, writer = await _open(target, "GET", path, b"", headers)
        try:
            status, lines = await _read_head(reader)
            data = b"".join([part async for part in _read_body(reader, lines)])
        finally:
            writer.close()
        if status != 200:
            raise ResponseError(f"status {status} of {path}: {data[:300].decode(errors='replace')}")
        return data

    value: object = json.loads(await asyncio.wait_for(get(), timeout_s))
    return value


async def _follow(
    target: Target, path: str, body: Mapping[str, object], headers: Mapping[str, str], trace: RequestTrace
) -> None:
    reader, writer = await _open(target, "POST", path, json.dumps(body).encode(), headers)
    try:
        status, lines = await _read_head(reader)
        parts = _read_body(reader, lines)
        if status != 200:
            data = b"".join([part async for part in parts])
            raise ResponseError(f"status {status}: {data[:300].decode(errors='replace')}")
        is_done = False
        rest = b""
        async for part in parts:
            *frames, rest = (rest + part).split(b"\n\n")
            now_s = time.perf_counter()
            for frame in frames:
                is_done = _take_frame(frame, now_s, trace) or is_done
        if not is_done:
            raise ResponseError("the stream ended without [DONE]")
    finally:
        writer.close()


def _take_frame(frame: bytes, now_s: float, trace: RequestTrace) -> bool:
    """Note an event; True if it is the last one."""
    if not frame.startswith(b"data:"):
        return False
    data = frame[5:].strip()
    if data == b"[DONE]":
        return True
    event = json.loads(data)
    if "error" in event:
        raise ResponseError(f"error in the stream: {json.dumps(event['error'])[:300]}")
    usage = event.get("usage")
    if usage:
        trace.num_prompt_tokens = usage.get("prompt_tokens", 0)
        trace.num_output_tokens = usage.get("completion_tokens", 0)
        trace.num_cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    for choice in event.get("choices", ()):
        delta = choice.get("delta") or {}
        if choice.get("text") or any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls")):
            trace.event_times_s.append(now_s)
    return False


async def _open(
    target: Target, method: str, path: str, body: bytes, headers: Mapping[str, str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(target.host, target.port, ssl=target.context, limit=_MAX_LINE_BYTES)
    lines = {"host": f"{target.host}:{target.port}", "connection": "close", "accept": "*/*", **headers}
    if body:
        lines |= {"content-type": "application/json", "content-length": str(len(body))}
    head = f"{method} {target.path}{path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    parts = lines[0].split(" ", 2)
    if len(parts) < 2 or not parts[1].isdigit():
        raise ResponseError(f"not HTTP: {lines[0][:100]!r}")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    return int(parts[1]), headers


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    if headers.get("transfer-encoding") != "chunked":
        length = headers.get("content-length")
        yield await reader.read() if length is None else await reader.readexactly(int(length))
        return
    while True:
        line = await reader.readline()
        if not line:
            raise ResponseError("the server closed the connection inside its answer")
        size = int(line.split(b";")[0], 16)
        data = await reader.readexactly(size + 2)
        if size == 0:
            return
        yield data[:-2]
