"""Text to token ids without generating anything: what /tokenize and token counts need. Nothing here blocks the loop.

Entry points: `run_off_loop` and `encode_ask`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pelton.core.errors import ChatTemplateError, InvalidParameterError
from pelton.server.generation import Ask, Message
from pelton.server.state import ServerState
from pelton.text.tokenizer import encode_chat

T = TypeVar("T")


async def run_off_loop(state: ServerState, work: Callable[[], T]) -> T:
    """Run `work` in a thread of the server's."""
    return await asyncio.get_running_loop().run_in_executor(state.executor, work)


async def encode_ask(state: ServerState, ask: Ask) -> list[int]:
    """The token ids of an ask with messages, as the engine would encode them. Raises as `encode_messages` does."""
    messages = ask.messages
    assert messages is not None, "only chats are encoded apart"
    return await run_off_loop(
        state, lambda: encode_messages(state, messages, tools=ask.tools, variables=ask.template_variables)
    )


def use_encoded(ask: Ask, token_ids: Sequence[int]) -> Ask:
    """The ask with its messages as the token ids that `encode_ask` gave, so that they are encoded only once."""
    return dataclasses.replace(ask, messages=None, tools=None, template_variables={}, prompt=token_ids)


def encode_text(state: ServerState, text: str, name: str, *, add_special: bool) -> list[int]:
    """Token ids of a text; raises `InvalidParameterError` that calls the text `name`."""
    try:
        return state.engine.tokenizer.encode(text, add_special=add_special)
    except InvalidParameterError as error:
        raise InvalidParameterError(name, error.value, error.allowed) from error


def encode_messages(
    state: ServerState,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    variables: Mapping[str, object] | None = None,
    add_generation_prompt: bool = True,
) -> list[int]:
    """Token ids of a conversation; raises `ChatTemplateError` and `InvalidParameterError` as the template does."""
    template = state.engine.chat_template
    if template is None:
        raise ChatTemplateError("this model has no chat template; give the prompt as text")
    text = template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools, variables=variables)
    return encode_chat(state.engine.tokenizer, text)
