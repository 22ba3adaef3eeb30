"""Schema of /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from typing import TypedDict

from pydantic import Field, model_validator

from pelton.server.bodies import StrictModel
from pelton.server.schema.chat import ChatMessage, Json, Tool


class TokenizeRequest(StrictModel):
    """Body of /tokenize: a `prompt`, or `messages` that go through the chat template."""

    model: str | None = Field(None, description="A served name; left out: the model this server runs.")
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(None, min_length=1)
    add_special_tokens: bool | None = Field(
        None, description="Add what the model's prompts begin with (BOS). Default: true for a prompt; not for messages."
    )
    return_token_strs: bool | None = Field(None, description="Report the text of each token.")
    add_generation_prompt: bool | None = Field(
        None, description="End messages with the beginning of the assistant's turn; the default."
    )
    tools: list[Tool] | None = Field(None, description="Tools for the chat template; only with messages.")
    chat_template_kwargs: Json | None = Field(None, description="Variables for the chat template.")

    @model_validator(mode="after")
    def _check(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("allowed: either prompt or messages")
        if self.messages is None:
            for name in ("add_generation_prompt", "tools", "chat_template_kwargs"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is for messages, not for a prompt")
        elif self.add_special_tokens:
            raise ValueError("add_special_tokens is for a prompt; the chat template writes its special tokens itself")
        return self


class DetokenizeRequest(StrictModel):
    """Body of /detokenize."""

    model: str | None = Field(None, description="A served name; left out: the model this server runs.")
    tokens: list[int] = Field(description="Token ids; special tokens become their text.")


class TokenizeResponse(TypedDict):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeResponse(TypedDict):
    """Answer of /detokenize."""

    prompt: str
