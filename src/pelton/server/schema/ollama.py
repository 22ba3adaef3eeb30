"""Schemas of Ollama's API: /api/chat, /api/generate, /api/show. Options this server has no meaning for are refused."""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pelton.server.bodies import StrictModel
from pelton.server.schema.chat import Json, Tool

_DURATION = re.compile(r"-?(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+|-?\d+(\.\d+)?")


def _check_duration(value: float | str | None) -> float | str | None:
    if isinstance(value, str) and not _DURATION.fullmatch(value):
        raise ValueError("allowed: seconds as a number, or a duration such as 5m, 1h30m, -1")
    return value


KeepAlive = Annotated[float | str | None, AfterValidator(_check_duration)]


class Options(StrictModel):
    """Ollama's `options`, as far as they mean something here; any other one is refused by its name."""

    num_predict: int | None = Field(None, description="Most tokens to generate; -1 and -2 go on to the context's end.")
    num_ctx: int | None = Field(
        None, ge=1, description="Context the request needs; refused if the server's is shorter. The server's is used."
    )
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repeat_penalty: float | None = Field(None, description="repetition_penalty.")
    repeat_last_n: Literal[-1, 0] | None = Field(
        None, description="-1: repeat_penalty looks at the whole context, as always here; 0 turns it off."
    )
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    mirostat: Literal[0, 2] | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    stop: str | list[str] | None = None


class OllamaRequest(StrictModel):
    """What /api/chat and /api/generate have in common."""

    model: str = Field(min_length=1)
    stream: bool | None = Field(None, description="One JSON object a line; the default.")
    format: Literal["", "json"] | Json | None = Field(None, description='"json", or a JSON schema.')
    options: Options | None = None
    keep_alive: KeepAlive = Field(
        None, description="Any duration: the model stays loaded as long as the server runs, which is longer."
    )
    think: bool | Literal["low", "medium", "high"] | None = Field(
        None, description="Given to the chat template as enable_thinking (and reasoning_effort)."
    )
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20, description="Alternatives per token; needs logprobs.")


class CalledFunction(StrictModel):
    """The function of an earlier tool call; `arguments` is an object."""

    name: str
    arguments: Json
    index: int | None = None
    description: str | None = None


class OllamaToolCall(StrictModel):
    """A tool call the assistant made earlier."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction

    def to_template(self, number: int) -> Json:
        """The call as chat completions have it: with an id, and with arguments as text."""
        arguments = json.dumps(self.function.arguments, ensure_ascii=False)
        function = {"name": self.function.name, "arguments": arguments}
        return {"type": "function", "id": self.id or f"call_{number}", "function": function}


class OllamaMessage(StrictModel):
    """One message of a chat."""

    role: str = Field(min_length=1, max_length=64)
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = Field(None, max_length=0, description="Images are not supported.")
    tool_calls: list[OllamaToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None

    def to_template(self) -> Json:
        """The message as chat templates take it."""
        message: Json = {"role": self.role, "content": self.content}
        if self.thinking is not None:
            message["reasoning_content"] = self.thinking
        if self.tool_calls is not None:
            message["tool_calls"] = [call.to_template(number) for number, call in enumerate(self.tool_calls)]
        if self.tool_name is not None:
            message["name"] = self.tool_name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class OllamaChatRequest(OllamaRequest):
    """Body of /api/chat."""

    messages: list[OllamaMessage] | None = Field(None, description="Empty or left out: say that the model is loaded.")
    tools: list[Tool] | None = None


class OllamaGenerateRequest(OllamaRequest):
    """Body of /api/generate."""

    prompt: str | None = Field(None, description="Empty or left out: say that the model is loaded.")
    system: str | None = Field(None, description="System message; not with raw.")
    raw: bool | None = Field(None, description="Take the prompt as it is, without the chat template.")
    suffix: Literal[""] | None = Field(None, description="Text after the completion is not supported.")
    template: Literal[""] | None = Field(None, description="The model's own chat template is used.")
    context: list[int] | None = Field(None, max_length=0, description="Not supported; use /api/chat.")
    images: list[str] | None = Field(None, max_length=0, description="Images are not supported.")


class OllamaShowRequest(StrictModel):
    """Body of /api/show."""

    model: str | None = None
    name: str | None = Field(None, description="Older name of `model`.")
    verbose: bool | None = Field(None, description="There is nothing more to show.")
