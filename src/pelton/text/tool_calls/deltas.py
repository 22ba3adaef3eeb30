"""What a parser of tool calls hands out: pieces of content and of calls, and the whole message they make.

It must not know styles. Entry points: `collect_message`, `join_calls`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pelton.core.tools import ToolCall


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text for the user.

    `cancelled_index`: the text is that of a call which turned out to be malformed after deltas of it had gone out; the
    call of this index is none.
    """

    text: str
    cancelled_index: int | None = None


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """A piece of call number `index`, counted from 0: `id` and `name` come once, with the first piece."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


Delta = ContentDelta | ToolDelta


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """A whole answer."""

    content: str
    tool_calls: tuple[ToolCall, ...]


def join_calls(deltas: Iterable[ToolDelta]) -> tuple[ToolCall, ...]:
    """The calls that pieces make, in the order of their index."""
    calls: dict[int, ToolCall] = {}
    for delta in deltas:
        known = calls.get(delta.index) or ToolCall("", "", "")
        calls[delta.index] = ToolCall(delta.id or known.id, delta.name or known.name, known.arguments + delta.arguments)
    return tuple(calls[index] for index in sorted(calls))


def collect_message(deltas: Iterable[Delta]) -> AssistantMessage:
    """Join all deltas of an answer; calls that were cancelled are left out, their text is content."""
    content: list[ContentDelta] = []
    pieces: list[ToolDelta] = []
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            content.append(delta)
        else:
            pieces.append(delta)
    cancelled = {delta.cancelled_index for delta in content}
    calls = join_calls(piece for piece in pieces if piece.index not in cancelled)
    return AssistantMessage("".join(delta.text for delta in content), calls)
