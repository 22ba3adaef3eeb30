"""Which `AnswerParser` reads the answers of a request: by the model's template and the request's tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pelton.server.answer_parser import AnswerParser, PlainParser
from pelton.server.schema.chat import ChatCompletionRequest

if TYPE_CHECKING:
    from pelton.engine.async_engine import AsyncEngine


def make_parser_maker(engine: AsyncEngine, body: ChatCompletionRequest) -> Callable[[], AnswerParser]:
    """A function that makes the parser of one choice."""
    return PlainParser
