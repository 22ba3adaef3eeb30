"""Schema of /v1/messages and /v1/messages/count_tokens, Anthropic's Messages API. Start at `MessagesRequest`.

Content blocks become messages of a chat template: text stays text, `tool_use` becomes a tool call of the assistant,
`tool_result` a message of role `tool`, `thinking` the reasoning of the assistant's message.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import Field

from pelton.server.bodies import StrictModel
from pelton.server.schema.chat import FunctionDefinition, Json, NamedFunction, NamedTool, Tool
from pelton.server.schema.sampling import with_sampling_fields

ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CacheControl(StrictModel):
    """A mark for the prompt cache. Prefixes are cached without it, so it changes nothing."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class TextBlock(StrictModel):
    """A text."""

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: None = None


class ThinkingBlock(StrictModel):
    """Reasoning that the assistant gave earlier; the signature is not looked at."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(StrictModel):
    """A tool call that the assistant made earlier."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: Json
    cache_control: CacheControl | None = None
    caller: None = None


class ToolResultBlock(StrictModel):
    """What a tool gave back."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


Block = Annotated[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")]


class InputMessage(StrictModel):
    """One turn. `tool_use` and `thinking` belong to the assistant, `tool_result` to the user."""

    role: Literal["user", "assistant"]
    content: str | list[Block]


class ToolDefinition(StrictModel):
    """A tool the model may use."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    input_schema: Json
    type: Literal["custom"] | None = None
    cache_control: CacheControl | None = None
    strict: bool | None = Field(None, description="Changes nothing: where calls are forced, the schema always holds.")

    def to_tool(self) -> Tool:
        """The same in the OpenAI form, which chat templates know."""
        function = FunctionDefinition(name=self.name, description=self.description, parameters=self.input_schema)
        return Tool(type="function", function=function)


class ToolChoiceBlock(StrictModel):
    """Whether tools may or must be used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = Field(None, description="Only with type tool.")
    disable_parallel_tool_use: bool | None = None


class Thinking(StrictModel):
    """Extended thinking: whether a model reasons is its template's business, and its budget cannot be set."""

    type: Literal["disabled"]


class SchemaFormat(StrictModel):
    """A JSON schema the text must fit."""

    type: Literal["json_schema"]
    schema_: Json = Field(alias="schema")


class OutputConfig(StrictModel):
    """Form of the answer."""

    format: SchemaFormat | None = None
    effort: None = None


class Metadata(StrictModel):
    """Goes into the request log."""

    user_id: str | None = Field(None, max_length=512)


class CountTokensRequest(StrictModel):
    """Body of /v1/messages/count_tokens, and what a message request has as well."""

    model: str
    messages: list[InputMessage] = Field(min_length=1)
    system: str | list[TextBlock] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoiceBlock | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None

    def to_messages(self) -> list[Json]:
        """All turns as chat templates take them. Turns of one role that follow each other are one message."""
        messages: list[Json] = []
        if self.system:
            messages.append({"role": "system", "content": _to_content(self.system)})
        for turn in self.messages:
            messages += _split_turn(turn)
        return _merge_turns(messages)

    def to_tools(self) -> list[Tool] | None:
        """The tools in the OpenAI form."""
        return None if self.tools is None else [tool.to_tool() for tool in self.tools]

    def to_tool_choice(self) -> ToolChoice | None:
        """`tool_choice` in the OpenAI form; None if it is left out."""
        choice = self.tool_choice
        if choice is None:
            return None
        if choice.type == "tool":
            return NamedTool(type="function", function=NamedFunction(name=choice.name or ""))
        names: dict[str, Literal["none", "auto", "required"]] = {"auto": "auto", "any": "required", "none": "none"}
        return names[choice.type]


# top_k, top_p and temperature are among the fields of `SamplingParams`.
@with_sampling_fields()
class MessagesRequest(CountTokensRequest):
    """Body of /v1/messages."""

    max_tokens: int = Field(ge=1, description="Most tokens of the answer.")
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = Field(None, description="There is one tier.")
    container: None = None


def _to_content(content: str | list[TextBlock]) -> str | list[Json]:
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": block.text} for block in content]


def _split_turn(turn: InputMessage) -> list[Json]:
    """Messages of one turn: results of tools come first, as they answer the turn before."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    texts = [block for block in turn.content if isinstance(block, TextBlock)]
    thinking = [block.thinking for block in turn.content if isinstance(block, ThinkingBlock)]
    calls = [block for block in turn.content if isinstance(block, ToolUseBlock)]
    results = [block for block in turn.content if isinstance(block, ToolResultBlock)]
    messages: list[Json] = [_to_result(block) for block in results]
    if texts or calls or thinking or not results:
        message: Json = {"role": turn.role, "content": _to_content(texts)}
        if thinking:
            message["reasoning_content"] = "\n".join(thinking)
        if calls:
            message["tool_calls"] = [_to_call(call) for call in calls]
        messages.append(message)
    return messages


def _to_result(block: ToolResultBlock) -> Json:
    content = "" if block.content is None else _to_content(block.content)
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _to_call(block: ToolUseBlock) -> Json:
    arguments = json.dumps(block.input, ensure_ascii=False)
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def _merge_turns(messages: list[Json]) -> list[Json]:
    merged: list[Json] = []
    for message in messages:
        before = merged[-1] if merged else None
        plain = {"role", "content"}
        if before is None or before["role"] != message["role"] or before.keys() | message.keys() != plain:
            merged.append(message)
        else:
            merged[-1] = {"role": message["role"], "content": _to_parts(before) + _to_parts(message)}
    return merged


def _to_parts(message: Json) -> list[Json]:
    content = message["content"]
    return content if isinstance(content, list) else [{"type": "text", "text": content}]
