"""The OpenAPI document: FastAPI's, with the schemas of bodies that routes read themselves. Start at `make_openapi`."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_ERROR_STATUSES = {
    "400": "A field is wrong, unknown or not supported; `param` names it.",
    "401": "No API key, or an unknown one.",
    "403": "A web page of another origin.",
    "404": "No such model.",
    "413": "The body is too long.",
    "429": "The caller's allowance of requests or tokens is used up; Retry-After says for how long.",
    "500": "An error of the server.",
    "503": "The queue is full, the engine has stopped, or the server is shutting down.",
}


def make_openapi(app: FastAPI) -> dict[str, Any]:  # Any: OpenAPI documents are nested JSON
    """Make the document once and keep it in the application, as FastAPI does."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for path in document["paths"].values():
        for operation in path.values():
            _move_definitions(operation, schemas)
            operation["responses"].pop("422", None)
            if operation.get("x-open") is None:
                for status, text in _ERROR_STATUSES.items():
                    operation["responses"].setdefault(status, {"description": text})
    app.openapi_schema = document
    return document


def _move_definitions(value: Any, schemas: dict[str, Any]) -> None:  # Any: see make_openapi
    """Move `$defs` below `value` to where the references in them point."""
    if isinstance(value, dict):
        schemas.update(value.pop("$defs", {}))
        for item in value.values():
            _move_definitions(item, schemas)
    elif isinstance(value, list):
        for item in value:
            _move_definitions(item, schemas)
