"""The timeline: cells are what a small engine must do by hand arithmetic, columns are as wide as their steps took."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

import plot_timeline
from pelton.core.config import EngineConfig
from pelton.core.step_plan import SampledToken, StepPlan, StepResult
from pelton.engine.core import EngineCore
from plot_timeline import draw
from timeline_load import Cell, Recording, Step, Wish, record


class SevenRunner:
    """Every token is a seven; blocks hold 4 tokens."""

    block_size = 4

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def run(self, plan: StepPlan) -> StepResult:
        sampled = {item.request.request_id: SampledToken(7, None) for item in plan.scheduled if item.needs_sample}
        return StepResult(sampled, 0.0, 0.0)


def record_cells(num_blocks: int, wishes: list[Wish], *, use_prefix_cache: bool = True) -> list[dict[str, Cell]]:
    core = EngineCore(SevenRunner(num_blocks), EngineConfig(use_prefix_cache=use_prefix_cache))
    return [step.cells for step in record(core, range(100), wishes).steps]


PREFILL_7, DECODE, WAITING = Cell("prefill", 7), Cell("decode", 1), Cell("waiting")


def test_repeated_prompt_is_taken_from_the_cache_but_for_its_last_token() -> None:
    wishes = [Wish("a", "", 0, (slice(0, 8),), 3), Wish("b", "", 1, (slice(0, 8),), 3)]
    assert record_cells(16, wishes) == [
        {"a": Cell("prefill", 8)},
        {"a": DECODE, "b": Cell("prefill", 1, num_cached=7)},
        {"a": DECODE, "b": DECODE},
        {"b": DECODE},
    ]


@pytest.mark.parametrize(
    ("use_prefix_cache", "resumed"), [(True, Cell("decode", 1, num_cached=8)), (False, Cell("again", 9))]
)
def test_preempted_request_waits_and_finds_its_tokens_or_computes_them_again(
    use_prefix_cache: bool, resumed: Cell
) -> None:
    """Five blocks: both want a third one for their ninth token, and there is one left."""
    wishes = [Wish("a", "", 0, (slice(0, 7),), 3), Wish("b", "", 0, (slice(50, 57),), 3)]
    assert record_cells(5, wishes, use_prefix_cache=use_prefix_cache) == [
        {"a": PREFILL_7, "b": PREFILL_7},
        {"a": DECODE, "b": DECODE},
        {"a": DECODE, "b": WAITING},
        {"b": resumed},
    ]


def test_second_choice_waits_for_its_leader_and_takes_the_prompt_over() -> None:
    wishes = [Wish("a", "", 0, (slice(0, 7),), 2), Wish("b", "", 0, (slice(0, 7),), 2, leader="a")]
    assert record_cells(8, wishes) == [
        {"a": PREFILL_7, "b": WAITING},
        {"a": DECODE, "b": Cell("prefill", 1, num_cached=6)},
        {"b": DECODE},
    ]


def make_recording() -> Recording:
    wishes = (
        Wish("first & only", "ann", 0, (slice(0, 60), slice(70, 80)), 3),
        Wish("b", "bob", 0, (slice(0, 9),), 1, "a"),
    )
    cells = [
        {"first & only": Cell("prefill", 64, num_cached=6), "b": WAITING},
        {"first & only": Cell("paused"), "b": Cell("decode", 1)},
        {"first & only": WAITING},
        {"first & only": Cell("again", 512)},
    ]
    times_s = (0.01, 0.03, 0.05, 0.01)
    return Recording(wishes, tuple(Step(time_s, cell) for time_s, cell in zip(times_s, cells, strict=True)))


def test_columns_are_as_wide_as_their_steps_took() -> None:
    """1,012 pixels for 100 ms; the steps begin after 0, 10, 40 and 90 ms."""
    root = ElementTree.fromstring(draw(make_recording(), "a title"))
    boxes = [rect.attrib for rect in root.iter("{http://www.w3.org/2000/svg}rect")]
    first = [box for box in boxes if 104 <= float(box.get("y", 0)) < 104 + plot_timeline.ROW]
    assert [float(box["x"]) for box in first] == pytest.approx([148.5, 148.5, 249.7, 552.8, 1059.3], abs=0.11)
    assert [float(box["width"]) for box in first] == pytest.approx([100.2, 100.2, 302.6, 506.0, 100.2], abs=0.11)


def test_picture_is_well_formed_and_says_what_happened() -> None:
    words = [word for word in ElementTree.fromstring(draw(make_recording(), "a <title>")).itertext() if word.strip()]
    for expected in ("a <title>", "first & only", "ann: 70 + 3", "6", "64", "512", "preempted", "waits for a"):
        assert expected in words
    assert "100" in words  # the last tick of the axis


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [(20.5, 32, "11"), (12, 32, "rotate(-90.0"), (17, 15, "9"), (16, 15, ""), (10, 32, "")],
)
def test_number_is_small_upright_tiny_or_left_out(width: float, height: float, expected: str) -> None:
    """Three digits are 19.2 pixels long in small letters, 15.7 in tiny ones."""
    found = "".join(plot_timeline.draw_number(0, 0, width, height, 512, "prefill"))
    assert bool(found) == bool(expected)
    assert ("rotate" in found) == ("rotate" in expected)
    assert expected.isdigit() is False or f'font-size="{expected}"' in found


@pytest.mark.model
def test_default_model_gives_a_picture_with_every_kind_of_request(tmp_path: Path) -> None:
    path = tmp_path / "timeline.svg"
    plot_timeline.main([str(path), "-m", os.environ["PELTON_TEST_MODEL"], "--threads", "1"])
    words = set(ElementTree.parse(path).getroot().itertext())
    assert {wish.name for wish in plot_timeline.LOAD} <= words
    assert "waits for choice 1" in words
