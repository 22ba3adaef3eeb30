"""What a parser of tool calls hands out: pieces of content and of calls, and the whole message they make.

It must not know styles. Entry point: `collect_message`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


def collect_message(deltas: Iterable[Delta]) -> AssistantMessage:
    """Join all deltas of an answer; calls that were cancelled are left out, their text is content."""
    content: list[str] = []
    calls: dict[int, _Call] = {}
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            content.append(delta.text)
            if delta.cancelled_index is not None:
                del calls[delta.cancelled_index]
            continue
        if delta.id is not None and delta.name is not None:
            calls[delta.index] = _Call(delta.id, delta.name)
        calls[delta.index].arguments.append(delta.arguments)
    finished = (ToolCall(call.id, call.name, "".join(call.arguments)) for call in calls.values())
    return AssistantMessage("".join(content), tuple(finished))
