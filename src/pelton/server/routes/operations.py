"""Routes for those who run the server: /health, /ready, /metrics."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from pelton.server.answers import JsonAnswer
from pelton.server.state import get_state

router = APIRouter(tags=["operations"])
_OPEN = {"x-open": True}


@router.head("/health", include_in_schema=False)
@router.get("/health", operation_id="get_health", summary="Is the process alive", openapi_extra=_OPEN)
async def get_health() -> JsonAnswer:
    """200 as long as the event loop runs. Needs no key."""
    return JsonAnswer({"status": "ok"})


@router.head("/ready", include_in_schema=False)
@router.get(
    "/ready",
    operation_id="get_ready",
    summary="May requests be sent here",
    openapi_extra=_OPEN,
    responses={503: {"description": "Not ready; `status` says why."}},
)
async def get_ready(request: Request) -> JsonAnswer:
    """200 while the engine runs and the server takes requests, else 503. Needs no key."""
    state = get_state(request)
    if state.is_draining:
        return JsonAnswer({"status": "draining"}, 503)
    if not state.engine.is_ready:
        return JsonAnswer({"status": "engine_dead"}, 503)
    return JsonAnswer({"status": "ready"})


@router.get("/metrics", operation_id="get_metrics", summary="Prometheus metrics")
async def get_metrics(request: Request) -> Response:
    """All metrics in Prometheus' text format."""
    return Response(get_state(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)
