"""`--trace FILE`: what requests lived through, written as a file for Perfetto. Start at `recording`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pelton.core.errors import InvalidParameterError

if TYPE_CHECKING:
    from pelton.engine.llm import LLM


def check_trace_path(path: str | None, num_kept: int) -> None:
    """Raise `InvalidParameterError` for a file that cannot be written, before anything is computed for it.

    The same where no finished request is kept (`num_kept`), which leaves nothing to write.
    """
    if path is not None:
        if num_kept < 1:
            raise InvalidParameterError("--num-kept-traces", num_kept, "at least 1 beside --trace")
        _write(path, "")


@contextmanager
def recording(llm: LLM, path: str | None) -> Iterator[None]:
    """Write the traces of all requests made meanwhile to `path`, also when they end with an error; None writes none."""
    try:
        yield
    finally:
        if path is not None:
            # Here and not above: only those who ask for it pay for it.
            from pelton.insight.chrome_trace import make_chrome_trace

            log = llm.traces
            traces = [*log.list_finished(), *log.list_live()]
            trace = make_chrome_trace(traces, log.list_steps(), time.perf_counter())
            _write(path, json.dumps(trace, allow_nan=False) + "\n")


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidParameterError("--trace", path, f"a file that can be written ({reason})") from error
