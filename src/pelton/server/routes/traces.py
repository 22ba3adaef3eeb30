"""What requests are doing and have lived through: /v1/requests, one request's story and trace, /v1/steps."""

from __future__ import annotations

import time

from fastapi import APIRouter
from starlette.requests import Request

from pelton.core.errors import InvalidParameterError
from pelton.core.trace import RequestTrace, WaitCause
from pelton.engine.trace_log import NUM_KEPT_STEPS, TraceLog
from pelton.insight.chrome_trace import make_chrome_trace
from pelton.insight.request_story import Json, make_row, make_story
from pelton.server.answers import JsonAnswer
from pelton.server.encoding import run_off_loop
from pelton.server.state import get_state, get_trace

router = APIRouter(tags=["operations"])
_DEFAULT_ROWS, _MAX_ROWS = 50, 10_000
_DEFAULT_STEPS = 200


@router.get("/v1/requests", operation_id="list_requests", summary="Requests in progress, and the last finished ones")
async def list_requests(request: Request) -> JsonAnswer:
    """The live table, and finished requests that are kept, newest first (`?limit=50`)."""
    state = get_state(request)
    limit = _read_count(request, "limit", _DEFAULT_ROWS, _MAX_ROWS)
    log, now_s = state.engine.traces, time.perf_counter()
    finished = log.list_finished()[::-1][:limit]
    return JsonAnswer(
        {
            "object": "list",
            "data": [live.describe(log.find_request(live.request_id)) for live in state.live],
            "finished": [make_row(trace, now_s) for trace in finished],
        }
    )


# `path`: an x-request-id may hold slashes. So what goes on behind an id comes before the id alone.
@router.get(
    "/v1/requests/{request_id:path}/trace", operation_id="get_request_trace", summary="A request's trace for Perfetto"
)
async def get_request_trace(request: Request, request_id: str) -> JsonAnswer:
    """JSON in the Trace Event Format, as ui.perfetto.dev opens it: the request, and the steps during its life."""
    state = get_state(request)
    trace, log = get_trace(state, request_id), state.engine.traces
    answer = JsonAnswer(await run_off_loop(state, lambda: _make_trace(trace, log)))
    answer.headers["content-disposition"] = f'attachment; filename="trace-{trace.request_id}.json"'
    return answer


@router.get("/v1/requests/{request_id:path}", operation_id="get_request", summary="Where the time of a request went")
async def get_request(request: Request, request_id: str) -> JsonAnswer:
    """Waits with their causes, chunks of the prompt, every token's gap, sends; milliseconds since the arrival.

    `request_id` is any id of the request: the generation's, the response's or x-request-id. Unfinished ones too.
    """
    state = get_state(request)
    trace, log = get_trace(state, request_id), state.engine.traces
    return JsonAnswer(
        await run_off_loop(state, lambda: make_story(trace, time.perf_counter(), _get_held_up_by(log))),
    )


@router.get("/v1/steps", operation_id="list_steps", summary="The last steps of the engine and what they cost")
async def list_steps(request: Request) -> JsonAnswer:
    """Steps with numbers above `?after=N`, the last `?limit=200` of them; times are ms of the server's clock."""
    state = get_state(request)
    after = _read_count(request, "after", 0, 2**63 - 1)
    limit = _read_count(request, "limit", _DEFAULT_STEPS, NUM_KEPT_STEPS)

    def describe() -> Json:
        return state.step_table.describe(state.engine, state.explainer.get_setup(state.engine), after, limit)

    return JsonAnswer(await run_off_loop(state, describe))


def _make_trace(trace: RequestTrace, log: TraceLog) -> Json:
    now_s = time.perf_counter()
    end_s = now_s if trace.end_s is None else trace.end_s
    steps = [step for step in log.list_steps() if step.end_s >= trace.arrival_s and step.start_s <= end_s]
    return make_chrome_trace([trace], steps, now_s, _get_held_up_by(log))


def _get_held_up_by(log: TraceLog) -> WaitCause | None:
    newest = log.list_steps(limit=1)
    return newest[0].held_up_by if newest else None


def _read_count(request: Request, name: str, default: int, maximum: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= maximum):
        raise InvalidParameterError(name, text[:200], f"an integer, 0 to {maximum}")
    return int(text)
