"""Draw how an engine fills its steps, as an SVG picture without further libraries.

    python bench/plot_timeline.py -m model.gguf docs/images/timeline.svg

Down: requests. Across: steps, each as wide as it took. A cell says how many tokens the step computed for the request;
what came from the prefix cache took no time and stands above the tokens that were computed after it. The load is that
of `timeline_load.py`, run on the model with the scheduling policy `fair`. Start at `draw`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from make_text import make_text
from pelton.core.config import EngineConfig
from pelton.engine.core import EngineCore
from pelton.engine.parts import load_parts
from plot_roofline import GREY, GRID, INK, line, text
from timeline_load import LOAD, NUM_SLOTS, NUM_TEXT_TOKENS, Cell, Recording, Wish, record

WIDTH, LEFT, RIGHT = 1180, 148, 20
TOP, ROW, CELL, BOTTOM = 104, 46, 32, 52
# Fill, ink on it, and what it means, in the order of the legend.
KINDS = {
    "prefill": ("#b3361e", "#ffffff", "prompt tokens, computed"),
    "again": ("#e39a3b", INK, "computed again after a preemption"),
    "cached": ("#2f8f4e", "#ffffff", "taken from the prefix cache"),
    "decode": ("#1e5fb3", "#ffffff", "one token, and the next one sampled"),
    "paused": ("#ffffff", GREY, "runs, its turn comes later"),
    "waiting": ("#d9d9d9", INK, "waits"),
}
FONT_SIZE, SMALL, TINY = 13, 11, 9
# Pixels per digit at the size SMALL.
DIGIT = 6.4


def small(x: float, y: float, words: str, color: str = GREY, anchor: str = "start", turn: float = 0.0) -> str:
    """A label in small letters."""
    return text(x, y, words, color, anchor, turn).replace("<text", f'<text font-size="{SMALL}"', 1)


def draw_box(x: float, y: float, width: float, height: float, kind: str) -> str:
    """A rectangle in the colour of `kind`, one pixel narrower than its place, so that steps can be told apart."""
    fill = KINDS[kind][0]
    border = f' stroke="{GREY}" stroke-width="0.6" stroke-dasharray="2 2"' if kind == "paused" else ""
    size = f'x="{x + 0.5:.1f}" y="{y:.1f}" width="{max(width - 1, 0.5):.1f}" height="{height:.1f}"'
    return f'<rect {size} fill="{fill}"{border}/>'


def draw_number(x: float, y: float, width: float, height: float, number: int, kind: str) -> list[str]:
    """A count in the middle of a cell; smaller or upright where the cell is narrow, nothing where it cannot fit."""
    words, ink = str(number), KINDS[kind][1]
    length = len(words) * DIGIT
    middle = x + width / 2, y + height / 2
    if length + 1 <= width:
        return [small(middle[0], middle[1] + 4, words, ink, "middle")]
    if length * TINY / SMALL + 1 <= width:
        return [text(middle[0], middle[1] + 3, words, ink, "middle").replace("<text", f'<text font-size="{TINY}"', 1)]
    if length <= height and width >= SMALL:
        return [small(middle[0] + 4, middle[1], words, ink, "middle", -90)]
    return []


def draw_cell(cell: Cell, x: float, y: float, width: float) -> list[str]:
    """What a step did for a request; waiting is a thin bar, cached tokens lie above the computed ones."""
    if cell.kind == "waiting":
        return [f'<rect x="{x:.1f}" y="{y + CELL / 2 - 3:.1f}" width="{width:.1f}" height="6" fill="#d9d9d9"/>']
    parts, top, height = [], y, float(CELL)
    if cell.num_cached:
        height = CELL / 2
        top = y + height
        parts.append(draw_box(x, y, width, height - 1, "cached"))
        parts += draw_number(x, y, width, height - 1, cell.num_cached, "cached")
    parts.append(draw_box(x, top, width, height, cell.kind))
    if cell.num_tokens:
        parts += draw_number(x, top, width, height, cell.num_tokens, cell.kind)
    return parts


def describe_waits(wish: Wish, cells: Sequence[Cell | None]) -> list[tuple[int, str]]:
    """(first step, why) of every time a request waits."""
    found = []
    for index, cell in enumerate(cells):
        before = cells[index - 1] if index else None
        if cell is None or cell.kind != "waiting" or (before is not None and before.kind == "waiting"):
            continue
        if before is not None:
            found.append((index, "preempted"))
        else:
            found.append((index, f"waits for {wish.leader}" if wish.leader else "waits for room"))
    return found


def draw_row(wish: Wish, cells: Sequence[Cell | None], edges: Sequence[float], y: float) -> list[str]:
    """Name and cells of a request; `edges` are the pixels between the steps."""
    num_prompt = sum(part.stop - part.start for part in wish.prompt)
    parts = [
        text(14, y + 13, wish.name),
        small(14, y + 28, f"{wish.tenant}: {num_prompt} + {wish.max_tokens}"),
    ]
    for cell, (x, x_end) in zip(cells, pairwise(edges), strict=True):
        if cell is not None:
            parts += draw_cell(cell, x, y, x_end - x)
    for index, why in describe_waits(wish, cells):
        x = edges[index]
        # Before the first wait there is nothing; the name needs its room, though.
        if index == 0 or cells[index - 1] is not None or x < LEFT + 120:
            parts.append(small(x + 2, y + CELL / 2 - 6, why))
        else:
            parts.append(small(x - 5, y + CELL / 2 + 4, why, anchor="end"))
    return parts


def draw_legend() -> list[str]:
    """What the colours mean, in two lines."""
    parts = []
    for index, (kind, (_, _, words)) in enumerate(KINDS.items()):
        x, y = LEFT + index % 3 * 300, 48 + index // 3 * 20
        if kind == "waiting":
            parts.append(f'<rect x="{x}" y="{y + 3}" width="14" height="6" fill="#d9d9d9"/>')
        else:
            parts.append(draw_box(x, y, 15, 12, kind))
        parts.append(text(x + 21, y + 11, words))
    return parts


def draw_axis(edges: Sequence[float], total_ms: float, y: float) -> list[str]:
    """Milliseconds under the rows."""
    scale = (edges[-1] - edges[0]) / total_ms
    tick = next(size for size in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000) if size * 14 > total_ms)
    parts = [line(edges[0], y, edges[-1], y, GREY)]
    for count in range(int(total_ms / tick) + 1):
        x = edges[0] + count * tick * scale
        parts.append(line(x, y, x, y + 5, GREY))
        parts.append(text(x, y + 19, f"{count * tick}", GREY, "middle"))
    parts.append(text((edges[0] + edges[-1]) / 2, y + 38, "milliseconds; a column is a step", INK, "middle"))
    return parts


def draw(recording: Recording, title: str) -> str:
    """The whole picture."""
    times_ms = [step.duration_s * 1000 for step in recording.steps]
    total_ms = sum(times_ms)
    scale = (WIDTH - LEFT - RIGHT) / total_ms
    edges = [LEFT + scale * time_ms for time_ms in accumulate(times_ms, initial=0.0)]
    height = TOP + ROW * len(recording.wishes) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" font-size="{FONT_SIZE}">',
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="white"/>',
        text(14, 26, title),
        *draw_legend(),
    ]
    bottom = TOP + ROW * len(recording.wishes)
    for index, wish in enumerate(recording.wishes):
        y = TOP + ROW * index
        parts.append(line(14, y - 7, WIDTH - RIGHT, y - 7, GRID))
        parts += draw_row(wish, [step.cells.get(wish.name) for step in recording.steps], edges, y)
    parts += [*draw_axis(edges, total_ms, bottom), "</svg>"]
    return "\n".join(parts) + "\n"


def run_load(model: str, num_threads: int) -> Recording:
    """Record the load on a model; it runs once before, as the length of steps is learned."""
    config = EngineConfig(threads=num_threads, kv_cache_tokens=NUM_SLOTS, scheduling_policy="fair")
    parts = load_parts(model, config, None)
    try:
        token_ids = parts.tokenizer.encode(make_text(6 * NUM_TEXT_TOKENS))[:NUM_TEXT_TOKENS]
        core = EngineCore(parts.runner, config)
        record(core, token_ids, LOAD)
        core.clear_prefix_cache()
        return record(core, token_ids, LOAD)
    finally:
        parts.runner.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Record, and write a picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    recording = run_load(options.model, options.threads)
    title = (
        f"{len(recording.steps)} steps of {Path(options.model).stem}, {options.threads} threads, a KV cache of "
        f"{NUM_SLOTS} tokens; left: tenant, prompt tokens + new tokens"
    )
    options.picture.write_text(draw(recording, title), encoding="utf-8")


if __name__ == "__main__":
    main()
