"""Tools of a request on their way into the prompt, off the event loop. Start at `offer_tools`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pelton.core.structure import Structure
from pelton.core.tools import Tool, ToolChoice
from pelton.text.chat_template import ChatTemplate
from pelton.text.tokenizer import Tokenizer
from pelton.text.tool_calls.prompt import prepare_chat


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """Messages and tools as the template takes them, and the structure of an answer that must call one.

    `template_tools` is empty, not None, where tools are described in the messages.
    """

    messages: Sequence[Mapping[str, object]]
    template_tools: Sequence[Mapping[str, object]]
    structure: Structure | None


def offer_tools(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[Tool],
    choice: ToolChoice,
) -> ToolOffer:
    """Bring tools into the messages; raises `InvalidParameterError` naming what is wrong with them."""
    chat = prepare_chat(template, messages, tools, choice)
    structure = None
    if choice.mode in ("required", "named"):
        # Here and not above: structured output is a library that most requests do without.
        from pelton.structure.forced_calls import build_call_structure

        structure = build_call_structure(tools, choice, chat.style, tokenizer.find_token)
    return ToolOffer(chat.messages, chat.tools or (), structure)
