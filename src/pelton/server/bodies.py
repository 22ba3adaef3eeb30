"""From the bytes of a request to a checked schema object. Start at `read_body`; a route calls it first.

It replaces FastAPI's own body handling, which parses on the event loop, takes NaN and has no limit of size.
`document_body` puts the schema into the OpenAPI document all the same.
"""

from __future__ import annotations

import asyncio
import reprlib
from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, FailFast, ValidationError
from starlette.requests import ClientDisconnect, Request

from pelton.core.errors import MalformedRequestError, RequestTooLargeError
from pelton.server.json_text import parse_json
from pelton.server.sse import ClientGoneError
from pelton.server.state import get_state
from pelton.server.uploads import Uploads

# Parsing this much takes well under a millisecond; more goes to a worker thread.
MAX_INLINE_BYTES = 32 * 1024
_UNION_TAGS = ("str", "int", "float", "bool", "list", "dict", "none")


class StrictModel(BaseModel):
    """Base of all request schemas: a field that is not declared is an error, and "1" is not 1."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class StopAtFirst(FailFast):
    """Metadata of a list in a schema: its first bad element is reported, not each of a million."""

    def __hash__(self) -> int:
        """Unions of types hash their parts' metadata, which pydantic's own class does not allow."""
        return hash(self.fail_fast)


Schema = TypeVar("Schema", bound=BaseModel)


async def read_body(request: Request, schema: type[Schema]) -> Schema:
    """Read, parse and validate the body of a request.

    Raises `RequestTooLargeError`, `MalformedRequestError` naming the first field that is wrong or unknown,
    `BodyTimeoutError` if it stops arriving, `ServerClosingError` if the server ends before it is there, and
    `ClientGoneError` if the client closes the connection in the middle.
    """
    state = get_state(request)
    data = await _read_limited(request, state.uploads, state.options.max_body_bytes)
    if len(data) <= MAX_INLINE_BYTES:
        return parse_body(data, schema)
    return await asyncio.get_running_loop().run_in_executor(state.executor, parse_body, data, schema)


def parse_body(data: bytes, schema: type[Schema]) -> Schema:
    """Parse and validate; see `read_body`."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise MalformedRequestError(f"the body is a JSON {_name_type(value)}; allowed: an object")
    return validate_body(value, schema)


def validate_body(value: Mapping[str, object], schema: type[Schema]) -> Schema:
    """Validate fields that are no JSON text any more; see `read_body`."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise _make_error(error, value) from None


async def _read_limited(request: Request, uploads: Uploads, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise RequestTooLargeError(f"the body has {declared} bytes; allowed: at most {max_bytes}")
    parts: list[bytes] = []
    num_bytes = 0
    stream = request.stream()
    try:
        while (part := await uploads.read_next(stream)) is not None:
            num_bytes += len(part)
            if num_bytes > max_bytes:
                raise RequestTooLargeError(f"the body has more than {max_bytes} bytes, which is the limit")
            parts.append(part)
    except ClientDisconnect as error:
        raise ClientGoneError from error
    return b"".join(parts)


def _make_error(error: ValidationError, body: object) -> MalformedRequestError:
    # Of a union every branch reports; the one that got deepest into the value is the one that was meant.
    first = max(error.errors(include_url=False, include_context=False), key=lambda e: len(e["loc"]))
    field = format_location(first["loc"], body)
    if first["type"] == "extra_forbidden":
        return MalformedRequestError(f"{field} is not a field this endpoint supports", field, "unknown_parameter")
    if first["type"] == "missing":
        return MalformedRequestError(f"{field} is missing", field, "missing_required_parameter")
    message = first["msg"].removeprefix("Value error, ")
    # Not repr: the input may be as long as the whole body.
    shown = reprlib.repr(first["input"])
    return MalformedRequestError(f"{field} is {shown}; {_lower_first(message)}", field, "invalid_value")


def format_location(location: tuple[int | str, ...], body: object) -> str:
    """The path of a field as one writes it: `messages[0].content`. Names of union branches are left out.

    A name that is a key of `body` at its place is a field, whatever it looks like.
    """
    path = ""
    value = body
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
            value = value[part] if isinstance(value, list) and part < len(value) else None
            continue
        is_key = isinstance(value, Mapping) and part in value
        if is_key or (part not in _UNION_TAGS and "[" not in part and not part[:1].isupper()):
            name = part if part.isprintable() and part.strip() else repr(part)
            path += f".{name}" if path else name
            value = value[part] if isinstance(value, Mapping) and is_key else None
    return path or "body"


def _lower_first(message: str) -> str:
    return message[:1].lower() + message[1:]


def _name_type(value: object) -> str:
    names = {list: "array", str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}
    return names[type(value)]


def document_body(schema: type[BaseModel], example: dict[str, object] | None = None) -> dict[str, object]:
    """`openapi_extra` of a route that reads its body with `read_body`; `openapi.py` moves the definitions."""
    content: dict[str, object] = {"schema": schema.model_json_schema(ref_template="#/components/schemas/{model}")}
    if example is not None:
        content["example"] = example
    return {"requestBody": {"required": True, "content": {"application/json": content}}}
