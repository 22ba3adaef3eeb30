"""`ServerState`: what all routes of one server share. `get_state` finds it from a request.

It holds things and does nothing itself; the parts are `auth.py`, `rate_limits.py`, `live_requests.py`, `metrics.py`.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from pelton.server.auth import ApiKeys, Caller
from pelton.server.engine_facts import EngineFacts
from pelton.server.errors import ErrorShapes
from pelton.server.explainer import Explainer
from pelton.server.ids import IdMaker, RequestIds
from pelton.server.live_requests import LiveRequests
from pelton.server.metrics import ServerMetrics
from pelton.server.options import ServerOptions
from pelton.server.rate_limits import RateLimiter
from pelton.server.request_log import LogFields, RequestLog
from pelton.server.request_names import RequestNames
from pelton.server.step_table import StepTable
from pelton.server.uploads import Uploads

if TYPE_CHECKING:
    from pelton.core.trace import RequestTrace
    from pelton.engine.async_engine import AsyncEngine
    from pelton.server.tracing import Tracer


@dataclass(slots=True)
class ServerState:
    """One server's engine, options and records. `model_names`: the first is what responses report.

    `is_draining` is set once, when the server begins to shut down.
    """

    engine: AsyncEngine
    options: ServerOptions
    model_names: tuple[str, ...]
    keys: ApiKeys
    limiter: RateLimiter
    metrics: ServerMetrics
    log: RequestLog
    tracer: Tracer | None
    error_shapes: ErrorShapes
    uploads: Uploads
    live: LiveRequests = field(default_factory=LiveRequests)
    engine_facts: EngineFacts = field(default_factory=EngineFacts)
    explainer: Explainer = field(default_factory=Explainer)
    step_table: StepTable = field(default_factory=StepTable)
    ids: IdMaker = field(default_factory=IdMaker)
    names: RequestNames = field(default_factory=RequestNames)
    executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "pelton-bodies"))
    created: int = field(default_factory=lambda: int(time.time()))
    is_draining: bool = False

    def cut_all(self) -> None:
        """End every open request, also those whose body is not there yet: its client gets an error."""
        self.live.cut_all()
        self.uploads.cut_all()


def get_state(connection: HTTPConnection) -> ServerState:
    """The state of the server a request came to."""
    state: ServerState = connection.app.state.pelton
    return state


def get_caller(connection: HTTPConnection) -> Caller:
    """Who sent the request; the gate (`gate.py`) has checked the key."""
    caller: Caller = connection.scope["state"]["caller"]
    return caller


def get_ids(connection: HTTPConnection) -> RequestIds:
    """The ids of this HTTP request."""
    ids: RequestIds = connection.scope["state"]["ids"]
    return ids


def get_request_id(connection: HTTPConnection) -> str:
    """What the HTTP request is called: x-request-id, as the client sent it or the server made it."""
    request_id: str = connection.scope["state"]["request_id"]
    return request_id


def get_trace(state: ServerState, request_id: str) -> RequestTrace:
    """The trace of a request by any of its ids; raises a 404 if it is not known, or not any more."""
    log = state.engine.traces
    trace = state.names.find_trace(log, request_id)
    if trace is None:
        kept = f"unfinished requests and the last {log.num_kept} finished ones are kept"
        raise HTTPException(404, f"request {request_id[:200]!r} is not known: {kept}")
    return trace


def get_log_fields(connection: HTTPConnection) -> LogFields:
    """The fields of this request's log line, to be added to."""
    fields: LogFields = connection.scope["state"]["log_fields"]
    return fields
