"""`Explanation`: what is said of a request or a server, as data; the text is made of it. Knows no engine.

Start at `Explanation`. `explain_request.py` and `explain_server.py` make one, `explain_text.py` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pelton.insight.roofline import Bound

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Fact:
    """A number, or a word, with its unit."""

    name: str
    value: float | int | str
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of the story: `text` says what happened in plain words, `facts` are its numbers.

    `bound` says which limit of the machine rules it and `pct_of_limit` how much of that was reached; None where that is
    not known or makes no sense. `lines` are drawn below, as they are.
    """

    name: str
    title: str
    text: str
    duration_s: float | None = None
    facts: tuple[Fact, ...] = ()
    bound: Bound | None = None
    pct_of_limit: float | None = None
    lines: tuple[str, ...] = ()

    def describe(self) -> Json:
        """As JSON; times in milliseconds."""
        return {
            "name": self.name,
            "title": self.title,
            "duration_ms": None if self.duration_s is None else self.duration_s * 1e3,
            "text": self.text,
            "facts": [{"name": fact.name, "value": fact.value, "unit": fact.unit} for fact in self.facts],
            "bound": self.bound,
            "pct_of_limit": self.pct_of_limit,
        }


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why it took so long: `seconds` of it are explained by this, and each line of `evidence` is a measured number."""

    name: str
    title: str
    text: str
    evidence: tuple[str, ...]
    seconds: float

    def describe(self) -> Json:
        """As JSON."""
        return {"name": self.name, "title": self.title, "text": self.text, "evidence": list(self.evidence)}


@dataclass(frozen=True, slots=True)
class Advice:
    """A change and its effect in a few words; `predicted` holds the numbers, None where nothing can be predicted."""

    change: str
    effect: str
    text: str
    predicted: Mapping[str, float] | None = None

    def describe(self) -> Json:
        """As JSON."""
        predicted = None if self.predicted is None else dict(self.predicted)
        return {"change": self.change, "effect": self.effect, "text": self.text, "predicted": predicted}


@dataclass(frozen=True, slots=True)
class Explanation:
    """The whole: `headline` in one line, the main verdict first. `request_id` is None for a server."""

    subject: Literal["request", "server"]
    request_id: str | None
    headline: str
    stages: tuple[Stage, ...]
    verdicts: tuple[Verdict, ...]
    advice: tuple[Advice, ...]

    def describe(self, text: str) -> Json:
        """As JSON, with the whole as `text`."""
        subject: Json = {"subject": self.subject}
        if self.request_id is not None:
            subject["request_id"] = self.request_id
        return {
            **subject,
            "stages": [stage.describe() for stage in self.stages],
            "verdicts": [verdict.describe() for verdict in self.verdicts],
            "advice": [advice.describe() for advice in self.advice],
            "text": text,
        }
