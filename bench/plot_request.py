"""The pictures of docs/explain.md: one request on a time axis, and what the KV cache saves, as SVG without libraries.

    pelton run --seed 1 --max-tokens 24 --trace trace.json "How does inference work?"
    python bench/plot_request.py trace.json -m model.gguf docs/images

The first is drawn from a trace file, the second from the cost model over the model file. Start at `main`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from pelton.core.config import read_environment
from pelton.insight.attention_cost import Work
from pelton.insight.cost_model import list_distinct_ops, sum_cost
from pelton.insight.kv_layout import KvFormat
from pelton.insight.model_source import open_model
from plot_roofline import GREY, GRID, INK, line, text

WIDTH, LEFT, RIGHT = 960, 150, 24
COLORS = {"tokenise": "#7d7d7d", "queue": "#c98a1b", "prefill": "#b3361e", "decode": "#1e5fb3", "send": "#2f8f4e"}
NUM_PROMPT, NUM_NEW = 100, 400


@dataclass(frozen=True)
class Span:
    """A named span of a request, in milliseconds since its arrival."""

    name: str
    start: float
    end: float
    num_tokens: int


def read_spans(path: Path) -> list[Span]:
    """The spans of the last request in a trace file, its steps among them."""
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    track = next(event["tid"] for event in reversed(events) if event["name"] == "tokenise")
    mine = [event for event in events if event["pid"] == 1 and event["tid"] == track and event["ph"] == "X"]
    start_us = min(event["ts"] for event in mine)
    return [make_span(event, start_us) for event in mine]


def make_span(event: dict[str, Any], start_us: float) -> Span:
    """A span of a trace event; what it is called begins with one of the names of `COLORS`."""
    name = next((name for name in COLORS if event["cat"] == name or event["name"].startswith(name)), event["name"])
    start = (event["ts"] - start_us) / 1e3
    return Span(name, start, start + event["dur"] / 1e3, int(event["args"].get("tokens", 1)))


def box(x: float, y: float, width: float, height: float, color: str) -> str:
    """A filled rectangle, a little narrower than its place."""
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width - 0.8, 0.8):.1f}" height="{height:.1f}" fill="{color}"/>'


def wrap(height: int, title: str, parts: list[str]) -> str:
    """A whole picture on white, so that it can be read in dark readers too."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" '
        f'font-size="13" role="img"><title>{title}</title><rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    )
    return "\n".join([head, *parts, "</svg>\n"])


def bracket(x1: float, x2: float, y: float, words: str, color: str) -> list[str]:
    """A measured distance with its name above."""
    ends = [line(x, y - 5, x, y + 5, color, 1.5) for x in (x1, x2)]
    return [line(x1, y, x2, y, color, 1.5), *ends, text((x1 + x2) / 2, y - 9, words, color, "middle")]


def draw_request(spans: list[Span]) -> str:
    """One request: what it did when, how many tokens each step computed, and what its reader had by then."""
    end = max(span.end for span in spans)
    scale = (WIDTH - LEFT - RIGHT) / end

    def x(ms: float) -> float:
        return LEFT + ms * scale

    steps = [span for span in spans if span.name in ("prefill", "decode")]
    first = max(span.end for span in steps if span.name == "prefill")
    parts = bracket(x(0), x(first), 40, f"TTFT {first:.0f} ms", INK)
    gaps = [span for span in steps if span.name == "decode"]
    if len(gaps) > 1:
        middle = gaps[len(gaps) // 2]
        before = gaps[len(gaps) // 2 - 1]
        parts += bracket(x(before.end), x(middle.end), 40, f"ITL {middle.end - before.end:.1f} ms", INK)
    names = ("where it is", "tokens per step", "tokens so far")
    parts += [text(LEFT - 14, y, name, INK, "end") for name, y in zip(names, (82, 142, 232), strict=True)]
    parts += [box(x(s.start), 64, (s.end - s.start) * scale, 28, COLORS[s.name]) for s in spans if s.name != "send"]
    most = max(span.num_tokens for span in steps)
    for span in steps:
        height = 52 * span.num_tokens / most
        parts.append(box(x(span.start), 164 - height, (span.end - span.start) * scale, height, COLORS[span.name]))
    parts.append(text(x(steps[0].end) + 6, 124, f"{steps[0].num_tokens} at once, then 1 by 1", GREY))
    parts += draw_stairs([span.end for span in steps if span.end >= first], x, end)
    parts += draw_axis(end, x, 268)
    place = LEFT
    for name in ("tokenise", "queue", "prefill", "decode"):
        parts += [box(place, 300, 14, 14, COLORS[name]), text(place + 20, 312, name, INK)]
        place += 110
    return wrap(326, "One request: tokenise, prefill, then one decode step per token", parts)


def draw_stairs(times: list[float], x: Callable[[float], float], end: float) -> list[str]:
    """Tokens its reader has at each time."""
    top, bottom = 188, 252
    rise = (bottom - top) / len(times)
    points = [f"{x(0):.1f},{bottom}"]
    for number, time in enumerate(times):
        points += [f"{x(time):.1f},{bottom - number * rise:.1f}", f"{x(time):.1f},{bottom - (number + 1) * rise:.1f}"]
    points.append(f"{x(end):.1f},{top:.1f}")
    return [f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLORS["send"]}" stroke-width="2"/>']


def draw_axis(end: float, x: Any, y: float) -> list[str]:
    """Milliseconds since arrival."""
    step = next(s for s in (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000) if end / s <= 10 or s == 10_000)
    parts = [line(x(0), y - 8, x(end), y - 8, GRID)]
    for ms in range(0, int(end) + 1, step):
        parts += [line(x(ms), y - 11, x(ms), y - 5, GREY), text(x(ms), y + 10, str(ms), GREY, "middle")]
    return [*parts, text(LEFT - 14, y + 10, "ms since arrival", GREY, "end")]


def count_operations(model: str) -> tuple[list[float], list[float]]:
    """Operations so far after each new token, with the KV cache and without, where all is computed again each time."""
    source = open_model(model, read_environment().cache_dir)
    kv = KvFormat("f16")

    def count(work: Work) -> float:
        cost = sum_cost(list_distinct_ops(source.shape, source.formats, kv, [work]))
        return cost.num_int8_ops + cost.num_f32_ops

    lengths = range(NUM_PROMPT, NUM_PROMPT + NUM_NEW)
    kept = [count(Work(0, NUM_PROMPT)), *(count(Work(length, 1)) for length in lengths[:-1])]
    return list(accumulate(kept)), list(accumulate(count(Work(0, length)) for length in lengths))


def draw_kv_cache(kept: list[float], again: list[float]) -> str:
    """Both sums of operations over the number of new tokens."""
    top, bottom = 40, 300
    most = again[-1]

    def x(number: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * number / len(again)

    def y(value: float) -> float:
        return bottom - (bottom - top) * value / most

    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        level = y(share * most)
        parts += [line(LEFT, level, WIDTH - RIGHT, level, GRID)]
        parts += [text(LEFT - 10, level + 4, f"{share * most / 1e12:.1f}", GREY, "end")]
    for values, color in ((again, COLORS["prefill"]), (kept, COLORS["decode"])):
        points = " ".join(f"{x(number + 1):.1f},{y(value):.1f}" for number, value in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2.5"/>')
    words = f"everything again for each token: {again[-1] / 1e12:.1f} Top"
    parts.append(text(WIDTH - RIGHT - 190, y(again[-60]) - 14, words, COLORS["prefill"], "end"))
    words = f"with keys and values kept: {kept[-1] / 1e12:.2f} Top, {again[-1] / kept[-1]:.0f} times fewer"
    parts.append(text(WIDTH - RIGHT, y(kept[-1]) - 10, words, COLORS["decode"], "end"))
    parts += [text(x(n), bottom + 18, str(n), GREY, "middle") for n in range(0, len(again) + 1, 100)]
    words = f"new tokens after a prompt of {NUM_PROMPT}"
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, bottom + 40, words, INK, "middle"))
    parts.append(text(40, (top + bottom) / 2, "10¹² operations so far", INK, "middle", -90))
    return wrap(352, "Operations with and without the KV cache", parts)


def main() -> None:
    """Write request.svg and kv_cache.svg."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="a file of pelton run --trace")
    parser.add_argument("-m", "--model", required=True, help="the model file")
    parser.add_argument("folder", type=Path, help="where the pictures go")
    options = parser.parse_args()
    (options.folder / "request.svg").write_text(draw_request(read_spans(options.trace)), encoding="utf-8")
    (options.folder / "kv_cache.svg").write_text(draw_kv_cache(*count_operations(options.model)), encoding="utf-8")


if __name__ == "__main__":
    main()
