"""Asking a running server for an explanation over HTTP. One clear error for each thing that can be missing.

Start at `fetch_explanation`. It uses the standard library only: one request, no stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pelton.core.errors import AuthenticationError, ConfigError, InvalidParameterError

if TYPE_CHECKING:
    from http.client import HTTPResponse

_TIMEOUT_S = 60.0
_MAX_ANSWER_BYTES = 64 << 20


def fetch_explanation(url: str, api_key: str | None, request_id: str | None, window_s: float) -> dict[str, object]:
    """The explanation of a server's last `window_s` seconds, or of its request `request_id`.

    Raises `InvalidParameterError` for a URL that is none, `AuthenticationError` for a key the server does not take, and
    `ConfigError` for no server, one that is not Pelton's, and a request it does not know.
    """
    from urllib.parse import quote

    base = _clean_url(url)
    path = f"/v1/explain?window_s={window_s:g}"
    if request_id is not None:
        path = f"/v1/requests/{quote(request_id, safe='')}/explain"
    status, body = _get(base, path, api_key)
    answer = _read_object(body)
    message = _get_message(answer)
    if status in (401, 403):
        hint = "--api-key gives another" if api_key is not None else "--api-key or PELTON_API_KEYS gives one"
        raise AuthenticationError(
            f"{base} refuses {'the' if api_key is not None else 'requests without an'} API key; {hint}"
        )
    if status == 404 and request_id is not None and message.startswith("request "):
        raise ConfigError(message)
    if answer is None or status in (404, 405) or (status == 200 and "text" not in answer):
        raise ConfigError(
            f"{base} answers, but has no {path.partition('?')[0]}: it is not a Pelton server, or an older one"
        )
    if status != 200:
        raise ConfigError(f"{base} answered with status {status}: {message or 'no message'}")
    return answer


def _clean_url(url: str) -> str:
    """The URL without the /v1 that clients of OpenAI's API put at its end."""
    from urllib.parse import urlsplit

    allowed = "http://HOST:PORT or https://HOST:PORT"
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        raise InvalidParameterError("--url", url, allowed) from None
    if parts.scheme not in ("http", "https") or not has_host or parts.query or parts.username:
        raise InvalidParameterError("--url", url, allowed)
    return url.rstrip("/").removesuffix("/v1")


def _get(base: str, path: str, api_key: str | None) -> tuple[int, bytes]:
    """Status and body of a GET."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    headers = {"accept": "application/json"}
    if api_key is not None:
        if not api_key.isascii() or not api_key.isprintable():
            raise InvalidParameterError("--api-key", f"{len(api_key)} characters", "ASCII characters that are printed")
        headers["authorization"] = f"Bearer {api_key}"
    try:
        response: HTTPResponse
        with urlopen(Request(base + path, headers=headers), timeout=_TIMEOUT_S) as response:
            return response.status, response.read(_MAX_ANSWER_BYTES)
    except HTTPError as error:
        with error:
            return error.code, error.read(_MAX_ANSWER_BYTES)
    except (URLError, HTTPException, OSError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        text = reason.strerror if isinstance(reason, OSError) else None
        text = text or str(reason) or type(reason).__name__
        raise ConfigError(f"no server answers at {base}: {text}") from error


def _read_object(body: bytes) -> dict[str, object] | None:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _get_message(answer: Mapping[str, object] | None) -> str:
    """What an error body of Pelton's says; "" for any other."""
    error = (answer or {}).get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else ""
