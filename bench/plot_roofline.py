"""Draw the roofline of a machine and the phases measured on it, as an SVG picture without further libraries.

    pelton bench --depth 0 --concurrency 1,8,32 --json > bench.json
    python bench/plot_roofline.py bench.json docs/images/roofline.svg

Across: operations per byte that must come from memory. Up: operations per second. Both axes are logarithmic. The roofs
are the limits that were measured in the same run; a point is a phase at its median speed. Start at `draw`.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 80, 30, 56, 64
INK, GREY, GRID = "#222222", "#666666", "#e4e4e4"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
COLORS = {"prefill": "#b3361e", "decode": "#1e5fb3"}


@dataclass(frozen=True)
class Point:
    """A phase: operations per byte, operations per second, and the share of the roof it reached."""

    label: str
    test: str
    ops_per_byte: float
    ops_per_s: float
    pct: float


@dataclass(frozen=True)
class Axes:
    """Logarithmic axes; ranges are powers of ten."""

    x_from: int
    x_to: int
    y_from: int
    y_to: int

    def x(self, value: float) -> float:
        """Pixels from the left."""
        share = (math.log10(value) - self.x_from) / (self.x_to - self.x_from)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        share = (math.log10(value) - self.y_from) / (self.y_to - self.y_from)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def read_points(report: dict[str, Any]) -> list[Point]:
    """The results of `pelton bench --json` as points."""
    points = []
    for result in report["results"]:
        cost = result["cost"]
        num_ops = cost["num_int8_ops"] + cost["num_f32_ops"]
        depth = f" at depth {result['depth']}" if result["depth"] else ""
        size = f"{result['prompt_tokens']} tokens" if result["test"] == "prefill" else "1 token"
        label = f"{result['test']} {result['concurrency']} x {size}{depth}"
        points.append(
            Point(
                label,
                result["test"],
                num_ops / cost["num_bytes"],
                num_ops / result["duration_s"],
                result["pct_of_roofline"],
            )
        )
    return points


def fit_axes(points: Sequence[Point], limits: dict[str, Any]) -> Axes:
    """Decades that hold all points and all roofs."""
    ridge = limits["int8_ops_per_s"]["best"] / limits["read_bytes_per_s"]["best"]
    xs = [p.ops_per_byte for p in points] + [ridge, 1.0]
    ys = [p.ops_per_s for p in points] + [limits["int8_ops_per_s"]["best"] * 1.2]
    x_to = max(math.ceil(math.log10(max(xs))), 1)
    return Axes(math.floor(math.log10(min(xs))), x_to, math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys))))


def line(x1: float, y1: float, x2: float, y2: float, color: str, width: float = 1.0, dash: str = "") -> str:
    """A straight line."""
    style = f' stroke-dasharray="{dash}"' if dash else ""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{color}" stroke-width="{width}"{style}/>'


def text(x: float, y: float, words: str, color: str = INK, anchor: str = "start", turn: float = 0.0) -> str:
    """A label; `turn` in degrees."""
    rotate = f' transform="rotate({turn:.1f} {x:.1f} {y:.1f})"' if turn else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}"{rotate}>{escape(words)}</text>'


def draw_grid(axes: Axes) -> list[str]:
    """Decades, their numbers and the names of the axes."""
    parts = []
    for power in range(axes.x_from, axes.x_to + 1):
        x = axes.x(10.0**power)
        parts.append(line(x, TOP, x, HEIGHT - BOTTOM, GRID))
        parts.append(text(x, HEIGHT - BOTTOM + 18, f"{10.0**power:g}", GREY, "middle"))
    for power in range(axes.y_from, axes.y_to + 1):
        y = axes.y(10.0**power)
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, GRID))
        parts.append(text(LEFT - 8, y + 4, f"{10.0 ** (power - 9):g}", GREY, "end"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 18, "operations per byte from memory", INK, "middle"))
    parts.append(text(22, (TOP + HEIGHT - BOTTOM) / 2, "Gop/s", INK, "middle", -90))
    return parts


def draw_roofs(axes: Axes, limits: dict[str, Any]) -> list[str]:
    """The slope of memory, and the flat roofs of int8 and float32 to the right of it."""
    bandwidth = limits["read_bytes_per_s"]["best"]
    right, bottom = 10.0**axes.x_to, 10.0**axes.y_from
    parts = []
    roofs = (("int8", limits["int8_ops_per_s"]["best"], ""), ("f32", limits["f32_ops_per_s"]["best"], "6 4"))
    for name, peak, dash in roofs:
        # The lower roof has its name below: phases lie above it.
        y = axes.y(peak)
        parts.append(line(axes.x(peak / bandwidth), y, axes.x(right), y, INK, 2.0, dash))
        parts.append(text(axes.x(right) - 4, y + (17 if dash else -7), f"{name} {peak / 1e9:,.0f} Gop/s", INK, "end"))
    x_from = max(10.0**axes.x_from, bottom / bandwidth)
    peak = limits["int8_ops_per_s"]["best"]
    x1, y1, x2, y2 = axes.x(x_from), axes.y(x_from * bandwidth), axes.x(peak / bandwidth), axes.y(peak)
    parts.append(line(x1, y1, x2, y2, INK, 2.0))
    turn = math.degrees(math.atan2(y2 - y1, x2 - x1))
    middle = x_from**0.6 * (peak / bandwidth) ** 0.4
    x, y = axes.x(middle), axes.y(middle * bandwidth)
    parts.append(text(x - 6, y - 9, f"memory {bandwidth / 1e9:.1f} GB/s", INK, "middle", turn))
    return parts


def draw_points(axes: Axes, points: Sequence[Point]) -> list[str]:
    """A lettered dot per phase, and what the letters mean, in the corner far below the roofs."""
    parts = []
    for index, point in enumerate(points):
        x, y, color = axes.x(point.ops_per_byte), axes.y(point.ops_per_s), COLORS[point.test]
        letter = LETTERS[index % len(LETTERS)]
        legend_y = HEIGHT - BOTTOM - 18 - 20 * (len(points) - 1 - index)
        for dot_x, dot_y in ((x, y), (WIDTH - RIGHT - 262, legend_y)):
            parts.append(f'<circle cx="{dot_x:.1f}" cy="{dot_y:.1f}" r="4.5" fill="{color}"/>')
        parts.append(text(x + 9, y + 4, letter, color))
        parts.append(text(WIDTH - RIGHT - 250, legend_y + 4, f"{letter}  {point.label}: {point.pct:.0f} %", color))
    return parts


def draw(report: dict[str, Any]) -> str:
    """The whole picture; `report` is what `pelton bench --json` prints."""
    machine = report["machine"]
    limits = machine["limits"]
    points = read_points(report)
    axes = fit_axes(points, limits)
    model = Path(report["model"]).name
    title = f"{model} on {machine['cpu']}, {machine['isa']}, {machine['threads']} threads"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 26, title),
        text(LEFT, 44, "percent: share of what the binding limit allows", GREY),
        *draw_grid(axes),
        *draw_roofs(axes, limits),
        *draw_points(axes, points),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Read a report, write a picture."""
    names = sys.argv[1:] if arguments is None else list(arguments)
    if len(names) != 2:
        sys.stderr.write("usage: plot_roofline.py BENCH.json PICTURE.svg\n")
        return 2
    report = json.loads(Path(names[0]).read_text(encoding="utf-8"))
    Path(names[1]).write_text(draw(report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
