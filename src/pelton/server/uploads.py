"""`Uploads`: the bodies that are on their way in. They may not stand still, nor outlast the server.

It knows parts of bodies, not what is in them. One event loop owns it. Start at `Uploads.read_next`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from pelton.core.errors import BodyTimeoutError, ServerClosingError


class Uploads:
    """All bodies being read; `timeout_s` is the longest pause between two parts of one."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._readers: set[asyncio.Future[bytes | None]] = set()
        self._is_cut = False

    async def read_next(self, parts: AsyncGenerator[bytes, None]) -> bytes | None:
        """The next part of a body, None at its end.

        Raises `BodyTimeoutError` if none comes in time, `ServerClosingError` after `cut_all`, and what `parts` raises.
        """
        if self._is_cut:
            raise _make_closing_error()
        reader = asyncio.ensure_future(anext(parts, None))
        self._readers.add(reader)
        try:
            await asyncio.wait([reader], timeout=self._timeout_s)
            if reader.cancelled():
                raise _make_closing_error()
            if not reader.done():
                raise BodyTimeoutError(
                    f"nothing of the body came for {self._timeout_s:g} s; allowed: pauses below that (--body-timeout-s)"
                )
            return reader.result()
        finally:
            self._readers.discard(reader)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def cut_all(self) -> None:
        """End every upload, also those that begin later: its client gets an error."""
        self._is_cut = True
        for reader in self._readers:
            reader.cancel()


def _make_closing_error() -> ServerClosingError:
    return ServerClosingError("the server is shutting down; the body of this request did not come in time")
