"""`AnswerParser`: the reader of one choice's text, and what it finds. `PlainParser` finds content only.

It knows texts; which parser fits a model and a request is decided in `chat_parsers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pelton.core.tools import ToolCall
from pelton.text.tool_calls.deltas import ToolDelta, join_calls


@dataclass(frozen=True, slots=True)
class AnswerDelta:
    """What a piece of text adds to an answer.

    `cancelled_calls` are the indices of calls that turned out to be none; their text is in `content`.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolDelta, ...] = ()
    cancelled_calls: frozenset[int] = frozenset()

    def join(self, later: AnswerDelta) -> AnswerDelta:
        """This and what came after it as one."""
        if later is NOTHING:
            return self
        return AnswerDelta(
            self.content + later.content,
            self.reasoning + later.reasoning,
            self.tool_calls + later.tool_calls,
            self.cancelled_calls | later.cancelled_calls,
        )


NOTHING = AnswerDelta()


class AnswerParser(Protocol):
    """Reads the text of one choice, piece by piece."""

    @property
    def has_calls(self) -> bool:
        """Whether a tool call was found so far."""

    def push(self, text: str) -> AnswerDelta:
        """Take more text; what may still become a marker is held back."""

    def flush(self) -> AnswerDelta:
        """The text has ended: give out what was held back."""


class PlainParser:
    """All text is content."""

    has_calls = False

    def push(self, text: str) -> AnswerDelta:
        """The text as content."""
        return AnswerDelta(text)

    def flush(self) -> AnswerDelta:
        """Nothing is ever held back."""
        return NOTHING


def collect_calls(answer: AnswerDelta) -> tuple[ToolCall, ...]:
    """The calls of a whole answer; those that turned out to be none are left out."""
    return join_calls(delta for delta in answer.tool_calls if delta.index not in answer.cancelled_calls)
