"""What a client gets for each error: one table from the classes of `core/errors.py` to status, type and code.

Start at `describe_error`. A route whose protocol has its own error body gives an `ErrorShape` (`routes/__init__.py`);
all others answer in the OpenAI shape, `make_openai_body`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pelton.core import errors

MAX_MESSAGE_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """One error as a client sees it; `retry_after_s` becomes a Retry-After header."""

    status: int
    type: str
    message: str
    code: str | None = None
    parameter: str | None = None
    retry_after_s: float | None = None


ErrorShape = Callable[[ErrorInfo], Mapping[str, object]]


@dataclass(slots=True)
class ErrorShapes:
    """Which paths answer in which shape: `by_path` for routes, `by_prefix` for whatever else begins like them.

    A prefix ends where a part of the path ends: "/api" is not one of "/apis".
    """

    by_path: dict[str, ErrorShape] = field(default_factory=dict)
    by_prefix: dict[str, ErrorShape] = field(default_factory=dict)

    def find(self, path: str) -> ErrorShape:
        """The shape of errors on `path`, which need not exist."""
        shape = self.by_path.get(path)
        if shape is not None:
            return shape
        found = (shape for prefix, shape in self.by_prefix.items() if f"{path}/".startswith(f"{prefix}/"))
        return next(found, make_openai_body)


# Class -> (status, type, code). A class without a line takes the line of its base.
STATUS_TABLE: Mapping[type[Exception], tuple[int, str, str | None]] = {
    errors.PeltonError: (500, "server_error", None),
    errors.InvalidParameterError: (400, "invalid_request_error", "invalid_value"),
    errors.StructureError: (400, "invalid_request_error", "invalid_structure"),
    errors.ContextLengthError: (400, "invalid_request_error", "context_length_exceeded"),
    errors.ConfigError: (500, "server_error", None),
    errors.ModelNotFoundError: (404, "invalid_request_error", "model_not_found"),
    errors.DownloadError: (502, "server_error", None),
    errors.ModelFileError: (500, "server_error", None),
    errors.UnsupportedModelError: (500, "server_error", None),
    errors.ChatTemplateError: (400, "invalid_request_error", "chat_template_error"),
    errors.SamplingError: (500, "server_error", "sampling_error"),
    errors.EngineBusyError: (503, "overloaded_error", "engine_busy"),
    errors.EngineOverloadedError: (503, "overloaded_error", "queue_full"),
    errors.CacheFileError: (500, "server_error", None),
    errors.EngineDeadError: (503, "server_error", "engine_dead"),
    errors.ServerError: (400, "invalid_request_error", None),
    errors.MalformedRequestError: (400, "invalid_request_error", None),
    errors.AuthenticationError: (401, "authentication_error", "invalid_api_key"),
    errors.ForbiddenOriginError: (403, "permission_error", "origin_not_allowed"),
    errors.RateLimitError: (429, "rate_limit_error", "rate_limit_exceeded"),
    errors.RequestTooLargeError: (413, "invalid_request_error", "request_too_large"),
    errors.BodyTimeoutError: (408, "invalid_request_error", "body_timeout"),
    errors.ServerClosingError: (503, "server_error", "server_closing"),
    errors.RequestTimeoutError: (504, "server_error", "request_timeout"),
    errors.GenerationError: (500, "server_error", "generation_failed"),
}

_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


def describe_error(error: Exception) -> ErrorInfo:
    """Look an error up in the table; anything that is not a `PeltonError` is a bug and says no more than its class."""
    if not isinstance(error, errors.PeltonError):
        return ErrorInfo(500, "server_error", f"internal error: {type(error).__name__}", "internal_error")
    entry = next(STATUS_TABLE[cls] for cls in type(error).__mro__ if cls in STATUS_TABLE)
    status, kind, code = entry
    parameter = None
    retry_after_s = None
    if isinstance(error, errors.InvalidParameterError):
        parameter = error.parameter
    elif isinstance(error, errors.MalformedRequestError):
        parameter, code = error.parameter, error.code
    elif isinstance(error, (errors.RateLimitError, errors.EngineOverloadedError)):
        retry_after_s = error.retry_after_s
    return ErrorInfo(status, kind, shorten(str(error)), code, parameter, retry_after_s)


def describe_http_error(status: int, detail: object) -> ErrorInfo:
    """An error that the web framework raised itself: no such path, wrong method."""
    return ErrorInfo(status, "invalid_request_error", shorten(str(detail)), _HTTP_CODES.get(status))


def shorten(message: str) -> str:
    """Keep an error message readable: a megabyte of prompt must not come back in it."""
    if len(message) <= MAX_MESSAGE_CHARACTERS:
        return message
    half = MAX_MESSAGE_CHARACTERS // 2
    return f"{message[:half]} ... ({len(message) - 2 * half} characters left out) ... {message[-half:]}"


def make_openai_body(info: ErrorInfo) -> Mapping[str, object]:
    """The error body of the OpenAI API."""
    return {"error": {"message": info.message, "type": info.type, "param": info.parameter, "code": info.code}}


def rename_parameter(error: errors.InvalidParameterError, names: Mapping[str, str]) -> errors.InvalidParameterError:
    """The same error in the client's words: `names` maps what the engine calls a field to what the client called it."""
    for known, name in names.items():
        if re.search(rf"\b{re.escape(known)}\b", error.parameter):
            return error.rename(error.parameter.replace(known, name, 1))
    return error
