"""Text to token ids without generating anything: what /tokenize and token counts need. Nothing here blocks the loop.

Entry points: `run_off_loop` and `encode_ask`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pelton.core.errors import ChatTemplateError, InvalidParameterError
from pelton.server.errors import rename_parameter
from pelton.server.generation import Ask, prepare_tools
from pelton.server.state import ServerState
from pelton.text.tokenizer import encode_chat

T = TypeVar("T")


async def run_off_loop(state: ServerState, work: Callable[[], T]) -> T:
    """Run `work` in a thread of the server's."""
    return await asyncio.get_running_loop().run_in_executor(state.executor, work)


async def encode_ask(state: ServerState, ask: Ask, *, add_generation_prompt: bool = True) -> list[int]:
    """The token ids of an ask with messages, tools included, as the engine would encode them, however many there are.

    Raises `ChatTemplateError` and `InvalidParameterError` as the template does.
    """
    ready = await prepare_tools(state, ask)
    try:
        return await run_off_loop(state, lambda: _encode_messages(state, ready, add_generation_prompt))
    except InvalidParameterError as error:
        raise rename_parameter(error, ask.field_names) from error


def encode_text(state: ServerState, text: str, name: str, *, add_special: bool) -> list[int]:
    """Token ids of a text; raises `InvalidParameterError` that calls the text `name`."""
    try:
        return state.engine.tokenizer.encode(text, add_special=add_special)
    except InvalidParameterError as error:
        raise InvalidParameterError(name, error.value, error.allowed) from error


def _encode_messages(state: ServerState, ask: Ask, add_generation_prompt: bool) -> list[int]:
    template = state.engine.chat_template
    if template is None:
        raise ChatTemplateError("this model has no chat template; give the prompt as text")
    assert ask.messages is not None, "only chats are encoded apart"
    text = template.render(
        ask.messages,
        add_generation_prompt=add_generation_prompt,
        tools=ask.template_tools or None,
        variables=ask.template_variables or None,
    )
    return encode_chat(state.engine.tokenizer, text)
