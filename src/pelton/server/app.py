"""`create_app`: the FastAPI application of one engine. Start here; `serve.py` runs it."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TextIO

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from pelton import __version__
from pelton.core.errors import PeltonError
from pelton.server.auth import ApiKeys
from pelton.server.engine_metrics import EngineCollector
from pelton.server.error_responses import make_error_response, make_info_response
from pelton.server.errors import ErrorShapes, describe_http_error
from pelton.server.gate import Gate
from pelton.server.metrics import ServerMetrics
from pelton.server.openapi import make_openapi
from pelton.server.options import ServerOptions
from pelton.server.rate_limits import RateLimiter
from pelton.server.request_log import RequestLog
from pelton.server.routes import ROUTE_MODULES
from pelton.server.sse import ClientGoneError
from pelton.server.state import ServerState, get_state
from pelton.server.tracing import make_tracer
from pelton.server.uploads import Uploads

if TYPE_CHECKING:
    from pelton.engine.async_engine import AsyncEngine


def create_app(
    engine: AsyncEngine,
    options: ServerOptions | None = None,
    *,
    model_names: Sequence[str] = ("pelton",),
    keys: ApiKeys | None = None,
    log_stream: TextIO | None = None,
    route_modules: Sequence[str] = ROUTE_MODULES,
) -> FastAPI:
    """Make the application of a loaded engine. It starts the engine when the server starts and closes it at the end.

    `model_names` are the names clients may ask for, the first is what answers report. Without `keys` anybody may call.
    `log_stream` gets one JSON line per request.
    """
    options = ServerOptions() if options is None else options
    state = ServerState(
        engine=engine,
        options=options,
        model_names=tuple(model_names),
        keys=ApiKeys({}) if keys is None else keys,
        limiter=RateLimiter(options.requests_per_minute, options.tokens_per_minute),
        metrics=ServerMetrics(model_names[0]),
        log=RequestLog(log_stream),
        tracer=make_tracer(options.otlp_endpoint),
        error_shapes=ErrorShapes(),
        uploads=Uploads(options.body_timeout_s),
    )
    state.metrics.registry.register(EngineCollector(engine, model_names[0]))
    app = FastAPI(
        title="Pelton",
        version=__version__,
        lifespan=_run_engine,
        docs_url="/docs" if options.use_docs else None,
        redoc_url=None,
        openapi_url="/openapi.json" if options.use_docs else None,
        middleware=_make_middleware(state),
    )
    app.state.pelton = state
    _include_routes(app, state.error_shapes, route_modules)
    for error_class in (PeltonError, ClientGoneError):
        app.add_exception_handler(error_class, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.openapi = lambda: make_openapi(app)  # type: ignore[method-assign]  # FastAPI's documented way to extend it
    return app


@asynccontextmanager
async def _run_engine(app: FastAPI) -> AsyncIterator[None]:
    state: ServerState = app.state.pelton
    await state.engine.start()
    try:
        yield
    finally:
        await state.engine.close()
        state.executor.shutdown(wait=False, cancel_futures=True)
        if state.tracer is not None:
            state.tracer.close()


def _make_middleware(state: ServerState) -> list[Middleware]:
    middleware = [Middleware(Gate, state=state)]
    if state.options.cors_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=list(state.options.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
        )
        middleware.insert(0, cors)
    return middleware


def _include_routes(app: FastAPI, shapes: ErrorShapes, route_modules: Sequence[str]) -> None:
    for name in route_modules:
        module = vars(importlib.import_module(name))
        router = module["router"]
        app.include_router(router)
        if "make_error_body" in module:
            shapes.by_path.update({route.path: module["make_error_body"] for route in router.routes})
            shapes.by_prefix.update(dict.fromkeys(module.get("PREFIXES", ()), module["make_error_body"]))


async def _answer_error(request: Request, error: Exception) -> Response:
    return make_error_response(get_state(request), request.scope["path"], error)


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    info = describe_http_error(error.status_code, error.detail)
    response = make_info_response(get_state(request), request.scope["path"], info)
    response.headers.update(error.headers or {})
    return response
