"""Which `AnswerParser` reads the answers of a request: by the model's chat template and the request's tools.

Start at `make_parser_maker`. Reasoning is split off first, then tool calls are found in what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pelton.server.answer_parser import NOTHING, AnswerDelta, AnswerParser, PlainParser
from pelton.server.schema.chat import ChatCompletionRequest
from pelton.text.reasoning import ReasoningSplitter, detect_reasoning
from pelton.text.tool_calls.deltas import ContentDelta, Delta, ToolDelta
from pelton.text.tool_calls.parser import ToolCallParser
from pelton.text.tool_calls.registry import DEFAULT_STYLE, detect_style

if TYPE_CHECKING:
    from pelton.engine.async_engine import AsyncEngine

# Makes the parser of one choice, given the last words of its prompt.
ParserMaker = Callable[[str], AnswerParser]


class ModelAnswerParser:
    """Reads reasoning and tool calls out of the text of one choice.

    Without `is_parallel` only the first call is handed out; the model was not asked for more.
    """

    def __init__(self, splitter: ReasoningSplitter | None, calls: ToolCallParser | None, *, is_parallel: bool) -> None:
        self._splitter = splitter
        self._calls = calls
        self._is_parallel = is_parallel
        self._open_calls: set[int] = set()

    @property
    def has_calls(self) -> bool:
        """Whether a tool call was found so far."""
        return bool(self._open_calls)

    def push(self, text: str) -> AnswerDelta:
        """Take more text; what may still become a marker is held back."""
        reasoning, content = ("", text) if self._splitter is None else self._splitter.push(text)
        if self._calls is None:
            return AnswerDelta(content, reasoning)
        return self._join(reasoning, self._calls.push(content) if content else [])

    def flush(self) -> AnswerDelta:
        """The text has ended: give out what was held back."""
        reasoning, content = ("", "") if self._splitter is None else self._splitter.flush()
        if self._calls is None:
            return AnswerDelta(content, reasoning)
        deltas = self._calls.push(content) if content else []
        return self._join(reasoning, [*deltas, *self._calls.flush()])

    def _join(self, reasoning: str, deltas: list[Delta]) -> AnswerDelta:
        content: list[str] = []
        calls: list[ToolDelta] = []
        cancelled: set[int] = set()
        for delta in deltas:
            if isinstance(delta, ContentDelta):
                content.append(delta.text)
                if delta.cancelled_index is not None:
                    cancelled.add(delta.cancelled_index)
            elif self._is_parallel or delta.index == 0:
                self._open_calls.add(delta.index)
                calls.append(delta)
        self._open_calls -= cancelled
        if not (reasoning or content or calls or cancelled):
            return NOTHING
        return AnswerDelta("".join(content), reasoning, tuple(calls), frozenset(cancelled))


def make_parser_maker(engine: AsyncEngine, body: ChatCompletionRequest) -> ParserMaker:
    """A function that makes the parser of one choice."""
    template = engine.chat_template
    style = (detect_style(template) or DEFAULT_STYLE) if body.tools and body.tool_choice != "none" else None
    names = [tool.function.name for tool in body.tools or ()]
    reasoning = None if template is None else detect_reasoning(template.source)
    if style is None and reasoning is None:
        return lambda prompt_end: PlainParser()

    def make(prompt_end: str) -> AnswerParser:
        splitter = None
        if reasoning is not None:
            splitter = ReasoningSplitter(reasoning, is_open=reasoning.is_open_after(prompt_end))
        calls = None if style is None else ToolCallParser(style, names)
        return ModelAnswerParser(splitter, calls, is_parallel=body.parallel_tool_calls is not False)

    return make
