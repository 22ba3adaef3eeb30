"""/v1/explain and /v1/requests/{id}/explain: why it took so long, in words and numbers; see `explainer.py`."""

from __future__ import annotations

import math

from fastapi import APIRouter
from starlette.requests import Request

from pelton.core.errors import InvalidParameterError
from pelton.server.answers import JsonAnswer
from pelton.server.encoding import run_off_loop
from pelton.server.state import get_state, get_trace

router = APIRouter(tags=["operations"])
_DEFAULT_WINDOW_S = 300.0
_MAX_WINDOW_S = 86400.0


@router.get("/v1/explain", operation_id="explain_server", summary="What the server did lately, and what would help")
async def get_explanation(request: Request) -> JsonAnswer:
    """Traffic, causes of slow requests, cache misses of the last minutes (`?window_s=300`), and the knobs to turn."""
    state, window_s = get_state(request), _read_window(request.query_params.get("window_s"))
    return JsonAnswer(await run_off_loop(state, lambda: state.explainer.explain_server(state.engine, window_s)))


@router.get(
    "/v1/requests/{request_id:path}/explain",
    operation_id="explain_request",
    summary="Why a request took as long as it did",
)
async def get_request_explanation(request: Request, request_id: str) -> JsonAnswer:
    """Stage by stage, with verdicts and advice; unfinished requests too. 404 for one that is not known any more."""
    state = get_state(request)
    trace = get_trace(state, request_id)
    return JsonAnswer(await run_off_loop(state, lambda: state.explainer.explain_request(state.engine, trace)))


def _read_window(text: str | None) -> float:
    if text is None:
        return _DEFAULT_WINDOW_S
    try:
        window_s = float(text)
    except ValueError:
        window_s = math.nan
    if not 0.0 < window_s <= _MAX_WINDOW_S:
        raise InvalidParameterError(
            "window_s", text[:200], f"a number of seconds, above 0 and at most {_MAX_WINDOW_S:g}"
        )
    return window_s
