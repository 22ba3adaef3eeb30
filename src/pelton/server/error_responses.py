"""Errors as responses, in the shape of the route they happened on. Start at `make_error_response`."""

from __future__ import annotations

from starlette.responses import Response

from pelton.server.errors import ErrorInfo, describe_error
from pelton.server.json_text import dump_json
from pelton.server.rate_limits import format_retry_after
from pelton.server.sse import CLIENT_GONE_STATUS, ClientGoneError
from pelton.server.state import ServerState


def make_error_response(state: ServerState, path: str, error: Exception) -> Response:
    """The response to a request on `path` that failed with `error`; counts it."""
    if isinstance(error, ClientGoneError):
        return Response(status_code=CLIENT_GONE_STATUS)
    return make_info_response(state, path, describe_error(error))


def make_info_response(state: ServerState, path: str, info: ErrorInfo) -> Response:
    """The same for an error that is described already."""
    shape = state.error_shapes.find(path)
    state.metrics.count_error(info.status, info.code)
    headers = {}
    if info.retry_after_s is not None:
        headers["retry-after"] = format_retry_after(info.retry_after_s)
    if info.status == 408:  # what is left of the body may still come, and would be taken for the next request
        headers["connection"] = "close"
    if info.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(dump_json(shape(info)), info.status, headers, media_type="application/json")
