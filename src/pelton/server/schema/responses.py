"""Schema of /v1/responses, OpenAI's Responses API for text and functions. Start at `ResponsesRequest`.

Nothing is stored, so a conversation is sent whole: the items of earlier answers may be sent back as they came.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pelton.server.bodies import StrictModel
from pelton.server.schema.chat import FunctionDefinition, Json, NamedFunction, NamedTool, StreamOptions, Tool
from pelton.server.schema.sampling import with_sampling_fields

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputText(StrictModel):
    """A text in a message or in a function's output."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Json] | None = Field(None, max_length=0)
    logprobs: list[Json] | None = None


class InputMessage(StrictModel):
    """A message, also one that this API gave as an answer."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputText]
    id: str | None = None
    status: ItemStatus | None = None
    phase: None = None


class FunctionCallItem(StrictModel):
    """A function call that the model made earlier."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: ItemStatus | None = None


class FunctionOutputItem(StrictModel):
    """What a function gave back."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputText]
    id: str | None = None
    status: ItemStatus | None = None


class ReasoningText(StrictModel):
    """A piece of reasoning."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(StrictModel):
    """Reasoning that the model gave earlier; it goes to the assistant's next message or call."""

    type: Literal["reasoning"]
    id: str | None = None
    summary: list[ReasoningText] | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: None = None
    status: ItemStatus | None = None


InputItem = InputMessage | FunctionCallItem | FunctionOutputItem | ReasoningItem


class FunctionTool(StrictModel):
    """A function the model may call."""

    type: Literal["function"]
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = Field(None, description="Changes nothing: where calls are forced, the schema always holds.")

    def to_tool(self) -> Tool:
        """The same in the form of chat completions, which chat templates know."""
        function = FunctionDefinition(name=self.name, description=self.description, parameters=self.parameters)
        return Tool(type="function", function=function)


class FunctionChoice(StrictModel):
    """`tool_choice` that demands one function."""

    type: Literal["function"]
    name: str


class TextFormat(StrictModel):
    """What the text must be; a schema is in the same object."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: Json | None = Field(None, alias="schema")
    strict: bool | None = None


class TextConfig(StrictModel):
    """Form of the text."""

    format: TextFormat | None = None
    verbosity: None = None


@with_sampling_fields()
class ResponsesRequest(StrictModel):
    """Body of /v1/responses."""

    model: str | None = Field(None, description="A served name; left out: the model this server runs.")
    input: str | list[InputItem] = Field(description="A text from the user, or messages and items.")
    instructions: str | None = Field(None, description="A system message in front of the input.")
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: int | None = Field(None, ge=1, description="Most tokens of the answer.")
    text: TextConfig | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20, description="Alternatives per token; needs the include.")
    stop: str | list[str] | None = Field(None, description="Stop strings; not in OpenAI's API.")
    metadata: dict[str, str] | None = Field(None, max_length=16, description="Comes back in the answer.")
    user: str | None = Field(None, max_length=512, description="Goes into the request log.")
    safety_identifier: str | None = Field(None, max_length=512, description="Goes into the request log.")
    prompt_cache_key: str | None = Field(
        None, max_length=512, description="Goes into the request log; cached prefixes are found without it."
    )
    store: Literal[False] | None = Field(None, description="Nothing is stored.")
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = Field(None, description="Nothing is truncated.")
    service_tier: Literal["auto", "default"] | None = Field(None, description="There is one tier.")
    previous_response_id: None = Field(None, description="Nothing is stored; send the whole conversation as input.")
    conversation: None = Field(None, description="Nothing is stored; send the whole conversation as input.")
    prompt: None = Field(None, description="Stored prompts are not supported.")
    reasoning: None = Field(None, description="How a model reasons is set with chat_template_kwargs.")
    chat_template_kwargs: Json | None = Field(None, description="Variables for the chat template.")
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1, description="Lower runs sooner.")
    cache_salt: str | None = Field(None, max_length=256, description="Prefixes are shared within one salt only.")

    def to_messages(self) -> list[Json]:
        """The conversation as chat templates take it; the developer's messages are the system's."""
        messages: list[Json] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        reasoning: str | None = None
        for item in self.input:
            if isinstance(item, ReasoningItem):
                reasoning = "".join(part.text for part in item.content or item.summary or [])
                continue
            if isinstance(item, FunctionCallItem):
                message = _join_calls(messages, item)
            else:
                message = _to_message(item)
                messages.append(message)
            if reasoning is not None and message["role"] == "assistant":
                message["reasoning_content"] = reasoning
            reasoning = None
        return messages

    def to_tools(self) -> list[Tool] | None:
        """The tools in the form of chat completions."""
        return None if self.tools is None else [tool.to_tool() for tool in self.tools]

    def to_tool_choice(self) -> Literal["none", "auto", "required"] | NamedTool | None:
        """`tool_choice` in the form of chat completions."""
        if isinstance(self.tool_choice, FunctionChoice):
            return NamedTool(type="function", function=NamedFunction(name=self.tool_choice.name))
        return self.tool_choice


def _to_message(item: InputMessage | FunctionOutputItem) -> Json:
    if isinstance(item, FunctionOutputItem):
        return {"role": "tool", "tool_call_id": item.call_id, "content": _to_content(item.output)}
    role = "system" if item.role == "developer" else item.role
    return {"role": role, "content": _to_content(item.content)}


def _join_calls(messages: list[Json], item: FunctionCallItem) -> Json:
    """Put a call into the assistant's message before it, or into a new one; returns that message."""
    call: Json = {
        "id": item.call_id,
        "type": "function",
        "function": {"name": item.name, "arguments": item.arguments},
    }
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    calls = messages[-1].setdefault("tool_calls", [])
    assert isinstance(calls, list)
    calls.append(call)
    return messages[-1]


def _to_content(content: str | list[InputText]) -> str | list[Json]:
    if isinstance(content, str):
        return content
    return [{"type": "text", "text": part.text} for part in content]
