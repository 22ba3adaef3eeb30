"""Chats, whatever the protocol: an assistant's text taken apart into content, reasoning and tool calls.

`ChatGeneration` runs an `Ask` with messages and reads what comes: `deltas()` while it streams, `collect()` at the end.
Routes of chat protocols use it instead of `Generation`; how things are written for a client is theirs.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.requests import Request

from pelton.core.outputs import Choice, GenerationResult, RequestOutput
from pelton.core.tools import ToolCall
from pelton.server.answer_parser import NOTHING, AnswerDelta, AnswerParser, collect_calls
from pelton.server.chat_parsers import ParserMaker
from pelton.server.generation import Ask, Generation
from pelton.server.logprobs import describe_token
from pelton.server.state import get_state

# A marker of reasoning and the line breaks after it are fewer tokens than this.
_NUM_END_TOKENS = 24


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
    tool_calls: tuple[ToolCall, ...]
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

    def __init__(self, request: Request, ask: Ask, make_parser: ParserMaker) -> None:
        self._generation = Generation(request, ask)
        self._tokenizer = get_state(request).engine.tokenizer
        self._make_parser = make_parser

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """Token ids of the prompt; empty before the first delta."""
        return self._generation.prompt_token_ids

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt; 0 before the first delta."""
        return len(self._generation.prompt_token_ids)

    async def deltas(self) -> AsyncGenerator[ChatDelta, None]:
        """What each engine output adds; closing it aborts the request."""
        parsers: dict[int, AnswerParser] = {}
        outputs = self._generation.outputs()
        try:
            async for output in outputs:
                parser = parsers.get(output.index)
                if parser is None:
                    parser = parsers[output.index] = self._make_parser(self._get_prompt_end())
                yield _read_output(parser, output)
        finally:
            await outputs.aclose()

    async def collect(self) -> ChatResult:
        """Run to the end and take every choice apart."""
        result = await self._generation.collect()
        return ChatResult(tuple(self._read_choice(choice) for choice in result.choices), result)

    def _read_choice(self, choice: Choice) -> ChatChoice:
        # The same parser as for a stream, fed at once, so that both give the same answer.
        parser = self._make_parser(self._get_prompt_end())
        answer = parser.push(choice.text).join(parser.flush())
        return ChatChoice(
            content=answer.content,
            reasoning=answer.reasoning,
            tool_calls=collect_calls(answer),
            finish_reason=_get_finish_reason(parser, choice.finish_reason),
            choice=choice,
        )

    def _get_prompt_end(self) -> str:
        """The last words of the prompt, control tokens included: they may have opened the reasoning."""
        token_ids = self._generation.prompt_token_ids[-_NUM_END_TOKENS:]
        return "".join(describe_token(self._tokenizer, token_id) for token_id in token_ids)


def _read_output(parser: AnswerParser, output: RequestOutput) -> ChatDelta:
    answer = parser.push(output.text_delta) if output.text_delta else NOTHING
    if output.finish_reason is None:
        return ChatDelta(output.index, answer, output, None)
    answer = answer.join(parser.flush())
    return ChatDelta(output.index, answer, output, _get_finish_reason(parser, output.finish_reason))


def _get_finish_reason(parser: AnswerParser, reason: str) -> str:
    return "tool_calls" if reason == "stop" and parser.has_calls else reason
