"""Routes of the page: `/` and the files it loads from `/web/`. They are the same for everybody and need no key.

It must not know the server's state: what the page shows it asks for with the visitor's own key. Start at `router`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

router = APIRouter(tags=["page"])
_OPEN = {"x-open": True}
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Trusted types forbid the page, and whatever gets into it, to turn text into markup.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "cache-control": "no-cache",  # asked for anew each time, and answered with 304 while it is the same
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str


def _load_files() -> Mapping[str, _File]:
    found = {}
    for path in files("pelton.web").iterdir():
        media_type = _MEDIA_TYPES.get("." + path.name.rpartition(".")[2])
        if media_type is not None:
            content = path.read_bytes()
            found[path.name] = _File(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
    return found


_FILES = _load_files()


@router.get("/", operation_id="get_page", summary="The page: a playground and an X-ray", openapi_extra=_OPEN)
async def get_page(request: Request) -> Response:
    """The page itself. Needs no key; what it asks the server for does."""
    return _answer(request, "index.html")


@router.get("/web/{name}", operation_id="get_page_file", summary="A file of the page", openapi_extra=_OPEN)
async def get_page_file(request: Request, name: str) -> Response:
    """A script, a style sheet or an image. Needs no key."""
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    file = _FILES.get(name)
    if file is None:
        raise HTTPException(404, "the page has no such file")
    headers = {**_HEADERS, "etag": file.etag}
    known = request.headers.get("if-none-match", "")
    if any(tag.strip().removeprefix("W/") in (file.etag, "*") for tag in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
