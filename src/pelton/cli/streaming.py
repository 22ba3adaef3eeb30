"""Printing an answer while it comes, with its closing line, and stopping cleanly on Ctrl-C.

Knows `RequestOutput` and streams of text. Start at `print_stream`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from pelton.cli import terminal
from pelton.cli.report import make_stats_line
from pelton.core.outputs import GenerationResult, RequestOutput


@dataclass(frozen=True, slots=True)
class PrintedAnswer:
    """The text that was printed, and whether Ctrl-C ended it; `result` is None if it did not come to its end."""

    text: str
    is_interrupted: bool
    result: GenerationResult | None = None


def print_stream(outputs: Iterator[RequestOutput]) -> PrintedAnswer:
    """Print each delta at once to standard output and one line of figures to standard error.

    Ctrl-C ends the answer, not the process. Raises `OutputClosedError` when nobody reads, after ending the request.
    """
    start_s = time.perf_counter()
    token_times_s: list[float] = []
    parts: list[str] = []
    last: RequestOutput | None = None
    is_interrupted = False
    try:
        for output in outputs:
            token_times_s.extend([time.perf_counter()] * len(output.new_token_ids))
            if output.text_delta:
                parts.append(output.text_delta)
                terminal.write_out(output.text_delta)
            last = output
    except KeyboardInterrupt:
        is_interrupted = True
    finally:
        _close(outputs)
    text = "".join(parts)
    if not text.endswith("\n"):
        terminal.write_out("\n")
    result = None if last is None else last.result
    terminal.write_error(_make_interrupted_line(start_s, token_times_s) if result is None else make_stats_line(result))
    return PrintedAnswer(text, is_interrupted, result)


def _close(outputs: Iterator[RequestOutput]) -> None:
    # A generator that is closed ends its request; what is left of a finished one has nothing to end.
    from collections.abc import Generator

    if isinstance(outputs, Generator):
        outputs.close()


def _make_interrupted_line(start_s: float, token_times_s: list[float]) -> str:
    if not token_times_s:
        return "pelton: interrupted before the first token"
    from pelton.engine.latency import make_itl_stats

    itl = make_itl_stats(token_times_s)
    duration_s = token_times_s[-1] - token_times_s[0]
    rate = (len(token_times_s) - 1) / duration_s if duration_s > 0 else 0.0
    return (
        f"pelton: interrupted after {len(token_times_s)} new tokens | TTFT {(token_times_s[0] - start_s) * 1e3:.1f} ms"
        f" | ITL median {itl.p50:.2f} ms, p99 {itl.p99:.2f} ms | decode {rate:.1f} tokens/s"
    )
