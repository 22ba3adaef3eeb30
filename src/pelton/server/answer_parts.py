"""An answer as a row of parts, for protocols that open and close each: reasoning, then text, then tool calls.

`AnswerParts` turns the deltas of one choice into events. It knows no protocol; routes write the events down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pelton.server.answer_parser import AnswerDelta
from pelton.text.tool_calls.deltas import ToolDelta

PartKind = Literal["reasoning", "text", "call"]


@dataclass(slots=True, eq=False)
class Part:
    """One part. `text` is what came so far: reasoning, text, or the arguments of a call as JSON text.

    `call_id` and `name` are set for calls only, `call_index` is the parser's number of the call. `is_cancelled`: this
    turned out to be no call after it had begun; its text comes again as text.
    """

    kind: PartKind
    index: int
    text: str = ""
    call_id: str = ""
    name: str = ""
    call_index: int = -1
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class PartEvent:
    """A part was opened, got more text (never empty), or was closed."""

    kind: Literal["open", "more", "close"]
    part: Part
    text: str = ""


class AnswerParts:
    """The parts of one choice; only the last one may be open."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._is_open = False

    def push(self, delta: AnswerDelta) -> Iterator[PartEvent]:
        """Take a delta; text in it that belongs to several parts comes in the order of the parts."""
        for part in self.parts:
            part.is_cancelled |= part.call_index in delta.cancelled_calls
        if delta.reasoning:
            yield from self._add("reasoning", delta.reasoning)
        if delta.content:
            yield from self._add("text", delta.content)
        for call in delta.tool_calls:
            if call.index not in delta.cancelled_calls:
                yield from self._add_call(call)

    def end(self) -> Iterator[PartEvent]:
        """The answer has ended. One that holds neither text nor a call gets an empty text."""
        if all(part.kind == "reasoning" or part.is_cancelled for part in self.parts):
            yield from self._open(Part("text", len(self.parts)))
        yield from self._close()

    def _add(self, kind: PartKind, text: str) -> Iterator[PartEvent]:
        if not self._is_open or self.parts[-1].kind != kind:
            yield from self._open(Part(kind, len(self.parts)))
        yield self._extend(text)

    def _add_call(self, call: ToolDelta) -> Iterator[PartEvent]:
        if not self._is_open or self.parts[-1].kind != "call" or self.parts[-1].call_index != call.index:
            part = Part("call", len(self.parts), call_id=call.id or "", name=call.name or "", call_index=call.index)
            yield from self._open(part)
        if call.arguments:
            yield self._extend(call.arguments)

    def _open(self, part: Part) -> Iterator[PartEvent]:
        yield from self._close()
        self.parts.append(part)
        self._is_open = True
        yield PartEvent("open", part)

    def _extend(self, text: str) -> PartEvent:
        part = self.parts[-1]
        part.text += text
        return PartEvent("more", part, text)

    def _close(self) -> Iterator[PartEvent]:
        if self._is_open:
            self._is_open = False
            yield PartEvent("close", self.parts[-1])
