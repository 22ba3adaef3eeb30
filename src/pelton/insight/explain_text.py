"""An explanation as plain text, 80 columns wide: stages, verdicts, what would help. Start at `write_text`.

Headings are lines without indentation, so that a terminal can be given colours afterwards.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from pelton.insight.explain_types import Advice, Explanation, Fact, Stage, Verdict
from pelton.insight.explain_units import format_time, format_value

WIDTH = 80
_INDENT = "   "


def write_text(explanation: Explanation) -> str:
    """The whole text, with a newline at its end."""
    lines = list(_wrap(explanation.headline, ""))
    for number, stage in enumerate(explanation.stages, 1):
        lines += ["", *_write_stage(number, stage)]
    if explanation.verdicts:
        first = explanation.verdicts[0]
        lines += ["", *_wrap(f"Verdict: {first.title} [{first.name}]", ""), *_write_verdict(first)]
        for verdict in explanation.verdicts[1:]:
            lines += ["", *_wrap(f"Also: {verdict.title} [{verdict.name}]", ""), *_write_verdict(verdict)]
    if explanation.advice:
        lines += ["", "What would help"]
        for advice in explanation.advice:
            lines += _write_advice(advice)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _write_stage(number: int, stage: Stage) -> Iterator[str]:
    title = f"{number}. {stage.title}"
    duration = "" if stage.duration_s is None else format_time(stage.duration_s)
    yield f"{title:{WIDTH - 10}}{duration:>10}"
    yield from _wrap(stage.text, _INDENT)
    for line in stage.lines:
        yield from _wrap(line, _INDENT + "  ") if len(line) > WIDTH - 5 else [f"{_INDENT}  {line}"]
    for fact in stage.facts:
        if stage.lines and fact.unit == "probability":
            continue  # drawn already
        yield f"{_INDENT}  {fact.name:32}{format_value(fact.value):>14} {_fit_unit(fact)}"
    if stage.bound is not None and stage.pct_of_limit is not None:
        name = "of the memory limit" if stage.bound == "memory" else "of the arithmetic limit"
        yield f"{_INDENT}  {name:32}{stage.pct_of_limit:>14.0f} %"


def _fit_unit(fact: Fact) -> str:
    """The unit, without its s for one of what is counted."""
    is_one = fact.value == 1 and isinstance(fact.value, int)
    return fact.unit[:-1] if is_one and fact.unit.isalpha() and fact.unit.endswith("s") else fact.unit


def _write_verdict(verdict: Verdict) -> Iterator[str]:
    yield from _wrap(verdict.text, _INDENT)
    for line in verdict.evidence:
        yield from _wrap(line, _INDENT + "- ")


def _write_advice(advice: Advice) -> Iterator[str]:
    yield from _wrap(f"{advice.change}: {advice.effect}", _INDENT + "* ")
    if advice.text:
        yield from _wrap(advice.text, _INDENT + "  ")


def _wrap(text: str, start: str) -> list[str]:
    """Lines of at most `WIDTH` columns; `start` begins the first one, blanks the others."""
    return textwrap.wrap(
        text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start), break_on_hyphens=False
    ) or [start]
