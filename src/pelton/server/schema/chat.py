"""Schema of /v1/chat/completions. Field by field the OpenAI API; more fields are those of `SamplingParams`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pelton.core.errors import MalformedRequestError
from pelton.server.bodies import StopAtFirst, StrictModel
from pelton.server.schema.sampling import with_sampling_fields
from pelton.server.schema.structure import ResponseFormat, StructuredOutputs

Json = dict[str, object]


class TextPart(StrictModel):
    """One text of a message whose content is a list."""

    type: Literal["text"]
    text: str


class FunctionCall(StrictModel):
    """The function a tool call calls; `arguments` is JSON text."""

    name: str
    arguments: str


class ToolCallMessage(StrictModel):
    """A tool call that the assistant made earlier."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class ChatMessage(StrictModel):
    """One message. Which roles there are is the chat template's business."""

    role: str = Field(min_length=1, max_length=64)
    content: str | Annotated[list[TextPart], StopAtFirst()] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCallMessage], StopAtFirst()] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: None = None

    def to_template(self) -> Json:
        """The message as chat templates take it."""
        message = self.model_dump(exclude_none=True, exclude={"reasoning", "refusal"})
        message["content"] = None if self.content is None else message["content"]
        if self.reasoning is not None:
            message.setdefault("reasoning_content", self.reasoning)
        return message


class FunctionDefinition(StrictModel):
    """A function the model may call; `parameters` is a JSON schema."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class Tool(StrictModel):
    """A tool the model may use."""

    type: Literal["function"]
    function: FunctionDefinition


class NamedFunction(StrictModel):
    """The name in a `NamedTool`."""

    name: str


class NamedTool(StrictModel):
    """`tool_choice` that demands one function."""

    type: Literal["function"]
    function: NamedFunction


class StreamOptions(StrictModel):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


def check_stream_options(options: StreamOptions | None, is_stream: bool | None) -> bool:
    """Whether usage was asked for; raises `MalformedRequestError` for options without a stream."""
    if options is not None and not is_stream:
        raise MalformedRequestError("stream_options needs stream: true", "stream_options", "invalid_value")
    return bool(options and options.include_usage)


@with_sampling_fields()
class ChatCompletionRequest(StrictModel):
    """Body of /v1/chat/completions."""

    model: str | None = Field(None, description="A served name; left out: the model this server runs.")
    messages: Annotated[list[ChatMessage], StopAtFirst()] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, description="Most tokens of each choice; older name.")
    max_completion_tokens: int | None = Field(None, description="Most tokens of each choice.")
    n: int | None = Field(None, description="Choices to generate; choice i uses seed + i.")
    best_of: int | None = Field(None, description="Generate this many, answer with the n most likely.")
    stop: str | Annotated[list[str], StopAtFirst()] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, description="Alternatives per token; needs logprobs.")
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    tools: Annotated[list[Tool], StopAtFirst()] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: Json | None = Field(None, description="Variables for the chat template.")
    include_reasoning: bool | None = Field(None, description="False leaves the reasoning out of the answer.")
    return_token_ids: bool | None = Field(
        None, description="Report prompt_token_ids (in a stream: once, first) and token_ids."
    )
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1, description="Lower runs sooner.")
    cache_salt: str | None = Field(None, max_length=256, description="Prefixes are shared within one salt only.")
    user: str | None = Field(None, max_length=512, description="Goes into the request log.")
    metadata: dict[str, str] | None = Field(None, description="Goes into the request log.")
    store: Literal[False] | None = Field(None, description="Nothing is stored.")
    service_tier: Literal["auto", "default"] | None = Field(None, description="There is one tier.")
    modalities: list[Literal["text"]] | None = Field(None, description="Text is what there is.")
