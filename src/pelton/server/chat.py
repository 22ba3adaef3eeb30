"""Chats, whatever the protocol: an assistant's text taken apart into content, reasoning and tool calls.

`ChatGeneration` runs an `Ask` with messages and reads what comes: `deltas()` while it streams, `collect()` at the end.
Routes of chat protocols use it instead of `Generation`; how things are written for a client is theirs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from starlette.requests import Request

from pelton.core.outputs import Choice, GenerationResult, RequestOutput
from pelton.server.answer_parser import NOTHING, AnswerDelta, AnswerParser, ParsedCall, collect_calls
from pelton.server.generation import Ask, Generation


@dataclass(frozen=True, slots=True)
class ChatDelta:
    """What one engine output adds to choice `index`. `finish_reason` is "tool_calls" if that is what it ended with."""

    index: int
    answer: AnswerDelta
    output: RequestOutput
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class ChatChoice:
    """A finished choice, taken apart. `choice` is the engine's."""

    content: str
    reasoning: str
    tool_calls: tuple[ParsedCall, ...]
    finish_reason: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class ChatResult:
    """A finished chat request."""

    choices: tuple[ChatChoice, ...]
    result: GenerationResult


class ChatGeneration:
    """One chat request in the engine; `make_parser` makes the reader of one choice's text.

    Raises what `Generation` raises.
    """

    def __init__(self, request: Request, ask: Ask, make_parser: Callable[[], AnswerParser]) -> None:
        self._generation = Generation(request, ask)
        self._make_parser = make_parser

    async def deltas(self) -> AsyncGenerator[ChatDelta, None]:
        """What each engine output adds; closing it aborts the request."""
        parsers: dict[int, AnswerParser] = {}
        outputs = self._generation.outputs()
        try:
            async for output in outputs:
                parser = parsers.get(output.index)
                if parser is None:
                    parser = parsers[output.index] = self._make_parser()
                yield _read_output(parser, output)
        finally:
            await outputs.aclose()

    async def collect(self) -> ChatResult:
        """Run to the end and take every choice apart."""
        result = await self._generation.collect()
        return ChatResult(tuple(self._read_choice(choice) for choice in result.choices), result)

    def _read_choice(self, choice: Choice) -> ChatChoice:
        # The same parser as for a stream, fed at once, so that both give the same answer.
        parser = self._make_parser()
        answer = parser.push(choice.text).join(parser.flush())
        return ChatChoice(
            content=answer.content,
            reasoning=answer.reasoning,
            tool_calls=collect_calls(answer.tool_calls),
            finish_reason=_get_finish_reason(parser, choice.finish_reason),
            choice=choice,
        )


def _read_output(parser: AnswerParser, output: RequestOutput) -> ChatDelta:
    answer = parser.push(output.text_delta) if output.text_delta else NOTHING
    if output.finish_reason is None:
        return ChatDelta(output.index, answer, output, None)
    answer = answer.join(parser.flush())
    return ChatDelta(output.index, answer, output, _get_finish_reason(parser, output.finish_reason))


def _get_finish_reason(parser: AnswerParser, reason: str) -> str:
    return "tool_calls" if reason == "stop" and parser.has_calls else reason
