"""`Gate`: what happens to every request before and after its route: id, origin, key, log line.

A plain ASGI middleware around the whole application, so that no route can be forgotten. It knows no route but
those that need no key.
"""

from __future__ import annotations

import time
import traceback
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pelton.core.errors import (
    AuthenticationError,
    ForbiddenOriginError,
    PeltonError,
    RateLimitError,
    ServerClosingError,
)
from pelton.core.trace import RequestTrace
from pelton.server.auth import Caller
from pelton.server.error_responses import make_error_response
from pelton.server.ids import RequestIds
from pelton.server.request_log import LogFields
from pelton.server.sse import CLIENT_GONE_STATUS
from pelton.server.state import ServerState

OPEN_PATHS = ("/health", "/ready")
# The page and its files, the same for everybody; `POST /` is TGI's and generates.
_PAGE_PATH, _PAGE_PREFIX = "/", "/web/"
# What an open page asks for several times a second; only what goes wrong is logged.
_POLLED = ("/v1/engine", "/v1/kv_cache", "/v1/steps", "/v1/requests")
_MAX_REQUEST_ID_LENGTH = 128


class Gate:
    """Lets a request through to `app`, or answers it with an error in the shape of its route."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection event; anything but HTTP passes through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = _Record(self._state, scope)

        async def send_and_note(message: Message) -> None:
            record.note(message)
            await send(message)

        try:
            scope["state"]["caller"] = self._admit(scope)
            await self._app(scope, receive, send_and_note)
        except Exception as error:  # the request's boundary: a bug in one must not concern the others
            if not isinstance(error, PeltonError):
                record.note_bug(error)
            if record.has_started:
                raise  # too late for another answer: the connection is closed
            response = make_error_response(self._state, scope["path"], error)
            await response(scope, receive, send_and_note)
        finally:
            record.finish()

    def _admit(self, scope: Scope) -> Caller:
        headers = Headers(scope=scope)
        self._check_origin(headers)
        if _is_open(scope["method"], scope["path"]):
            return Caller("")
        caller = self._state.keys.find_caller(headers)
        if caller is None:
            raise AuthenticationError(
                "no API key, or one that is not known; send Authorization: Bearer KEY (or x-api-key: KEY)"
            )
        if scope["method"] == "POST":
            self._admit_work(caller)
        return caller

    def _admit_work(self, caller: Caller) -> None:
        if self._state.is_draining:
            raise ServerClosingError("the server is shutting down and takes no new requests")
        wait_s = self._state.limiter.admit(caller.name)
        if wait_s > 0.0:
            options = self._state.options
            limits = (("requests", options.requests_per_minute), ("tokens", options.tokens_per_minute))
            allowed = " and ".join(f"{limit} {kind}" for kind, limit in limits if limit is not None)
            raise RateLimitError(f"{caller.name} has used its allowance of {allowed} per minute up", wait_s)

    def _check_origin(self, headers: Headers) -> None:
        """Refuse pages of other sites: a browser sends their requests, even to a server that only listens locally."""
        origin = headers.get("origin")
        allowed = self._state.options.cors_origins
        if origin is None or "*" in allowed or origin in allowed:
            return
        if _get_host(origin) != headers.get("host"):
            raise ForbiddenOriginError(f"origin {origin!r} is not allowed; --cors-origins allows one")


class _Record:
    """One request's log line and response headers."""

    def __init__(self, state: ServerState, scope: Scope) -> None:
        self._state = state
        self._start_s = time.perf_counter()
        self._status: int | None = None
        self._first_byte_s: float | None = None
        self._scope = scope
        ids = RequestIds(state.ids.make())
        self._request_id = _get_sent_id(scope) or ids.make("req-")
        self._fields: LogFields = {}
        scope.setdefault("state", {})
        scope["state"] |= {"request_id": self._request_id, "ids": ids, "log_fields": self._fields}

    @property
    def has_started(self) -> bool:
        """Whether the client has got a status already."""
        return self._status is not None

    def note_bug(self, error: Exception) -> None:
        """Put an error that is nobody's but ours into the log line, with its traceback."""
        self._fields["traceback"] = "".join(traceback.format_exception(error))

    def note(self, message: Message) -> None:
        """See a message of the response on its way out."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            MutableHeaders(scope=message)["x-request-id"] = self._request_id
        elif self._first_byte_s is None and message.get("body"):
            self._first_byte_s = time.perf_counter()

    def finish(self) -> None:
        """Write the log line, and the span where there is a tracer."""
        if self._status in (200, 304) and self._is_polled():
            return
        end_s = time.perf_counter()
        caller = self._scope["state"].get("caller")
        is_gone = self._fields.pop("client_gone", False) or self._status is None or self._status == CLIENT_GONE_STATUS
        if is_gone:
            self._state.metrics.count_error(CLIENT_GONE_STATUS, "client_gone")
        fields = {
            "request_id": self._request_id,
            "method": self._scope["method"],
            "path": self._scope["path"],
            "status": CLIENT_GONE_STATUS if is_gone else self._status,
            "caller": caller.name if caller is not None else None,
            "client": (self._scope.get("client") or ("",))[0],
            "duration_ms": round((end_s - self._start_s) * 1e3, 3),
            "first_byte_ms": _round_ms(self._first_byte_s, self._start_s),
            **self._fields,
        }
        self._state.log.write(fields)
        if self._state.tracer is not None:
            traceparent = Headers(scope=self._scope).get("traceparent")
            name = f"{self._scope['method']} {self._scope['path']}"
            self._state.tracer.record(name, (self._start_s, end_s), traceparent, fields, self._list_generations())

    def _list_generations(self) -> list[RequestTrace]:
        generations = self._fields.get("generations", [])
        assert isinstance(generations, list)
        found = (self._state.engine.traces.find_request(entry["request_id"]) for entry in generations)
        return [trace for trace in found if trace is not None]

    def _is_polled(self) -> bool:
        path: str = self._scope["path"]
        return self._scope["method"] == "GET" and path.startswith((*_POLLED, _PAGE_PREFIX))


def _is_open(method: str, path: str) -> bool:
    """Whether anybody may ask for this, without a key."""
    is_page = path == _PAGE_PATH or path.startswith(_PAGE_PREFIX)
    return path in OPEN_PATHS or (method == "GET" and is_page)


def _round_ms(time_s: float | None, start_s: float) -> float | None:
    return None if time_s is None else round((time_s - start_s) * 1e3, 3)


def _get_host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # brackets that hold no address
        return None


def _get_sent_id(scope: Scope) -> str | None:
    sent = Headers(scope=scope).get("x-request-id", "")
    if sent.isascii() and sent.isprintable() and 0 < len(sent) <= _MAX_REQUEST_ID_LENGTH:
        return sent
    return None
