"""`RequestLog`: one JSON line per request. It knows fields and a stream, not routes."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from typing import TextIO

LogFields = dict[str, object]


@dataclass(slots=True)
class RequestLog:
    """Writes to `stream`; None writes nothing. A stream that fails never fails a request."""

    stream: TextIO | None

    def write(self, fields: LogFields) -> None:
        """Write one line; `time` (UTC, ISO 8601) is put in front. Prompts and keys are never among the fields."""
        if self.stream is None:
            return
        now_s = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s * 1000) % 1000:03d}Z"
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(json.dumps({"time": stamp, **fields}, default=str) + "\n")
            self.stream.flush()
