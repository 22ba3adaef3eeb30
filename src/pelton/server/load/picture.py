"""The picture of a load: when the text of each request came, as an SVG without further libraries. Start at `draw`.

Across: seconds from the start. One line per request in order of sending: grey while it waits for its first text, blue
from there to its end, red where it failed.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from pelton.server.load.client import RequestTrace
from pelton.server.load.report import LoadSummary
from pelton.server.load.run import LoadTraces

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 860, 60, 20, 64, 44
INK, GREY, GRID, WAIT, TEXT, FAILED = "#222222", "#666666", "#e4e4e4", "#bbbbbb", "#1e5fb3", "#b3361e"
_MAX_PLOT_HEIGHT = 900.0
_NUM_GRID_LINES = 8


def draw(load: LoadTraces, summary: LoadSummary, title: str) -> str:
    """The whole SVG document."""
    traces = sorted(load.traces, key=lambda trace: trace.start_s)
    start_s = traces[0].start_s
    row = min(8.0, _MAX_PLOT_HEIGHT / len(traces))
    height = TOP + row * len(traces) + BOTTOM
    scale = (WIDTH - LEFT - RIGHT) / max(load.duration_s, 1e-9)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="#ffffff"/>',
        _text(LEFT, 22, title, INK, size=15),
        _text(LEFT, 42, describe(summary), GREY),
        *_draw_grid(load.duration_s, scale, height),
    ]
    for number, trace in enumerate(traces):
        parts += _draw_request(trace, start_s, scale, TOP + row * number, row)
    return "\n".join([*parts, "</svg>", ""])


def describe(summary: LoadSummary) -> str:
    """One line of the figures people ask for first."""
    return (
        f"{summary.num_requests} requests, {summary.num_failed} failed; {summary.output_tokens_per_s:.0f} tokens/s; "
        f"TTFT p50 {summary.ttft_ms.p50:.0f} ms, p99 {summary.ttft_ms.p99:.0f} ms; "
        f"ITL p50 {summary.itl_ms.p50:.1f} ms, p99 {summary.itl_ms.p99:.1f} ms"
    )


def _draw_grid(duration_s: float, scale: float, height: float) -> list[str]:
    parts = []
    for number in range(_NUM_GRID_LINES + 1):
        time_s = duration_s * number / _NUM_GRID_LINES
        x = LEFT + time_s * scale
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 6}" x2="{x:.1f}" y2="{height - BOTTOM + 4:.1f}" stroke="{GRID}"/>')
        parts.append(_text(x, height - BOTTOM + 18, f"{time_s:.3g}", GREY, "middle"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, height - 8, "seconds", INK, "middle"))
    return parts


def _draw_request(trace: RequestTrace, start_s: float, scale: float, y: float, row: float) -> list[str]:
    def bar(from_s: float, to_s: float, color: str) -> str:
        x, width = LEFT + (from_s - start_s) * scale, max((to_s - from_s) * scale, 0.5)
        return f'<rect x="{x:.1f}" y="{y:.2f}" width="{width:.1f}" height="{row * 0.8:.2f}" fill="{color}"/>'

    if trace.error is not None:
        return [bar(trace.start_s, trace.end_s, FAILED)]
    first_s = trace.event_times_s[0]
    return [bar(trace.start_s, first_s, WAIT), bar(first_s, trace.end_s, TEXT)]


def _text(x: float, y: float, words: str, color: str, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'
    )
