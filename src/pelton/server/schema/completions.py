"""Schema of /v1/completions, the OpenAI API for plain text; more fields are those of `SamplingParams`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from pelton.server.bodies import StopAtFirst, StrictModel
from pelton.server.schema.chat import StreamOptions
from pelton.server.schema.sampling import with_sampling_fields
from pelton.server.schema.structure import ResponseFormat, StructuredOutputs

Prompts = str | list[str] | list[int] | list[list[int]]


def check_prompt(value: object) -> Prompts:
    """Return a prompt that is one; raise ValueError.

    In Python and not by the schema: pydantic tries every branch of the union on every element, and keeps the
    interpreter to itself meanwhile, which a body of a million elements turns into a second.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        kinds = {type(item) for item in value}
        if not kinds or kinds == {str} or kinds == {int}:
            return value
        if kinds == {list} and all(type(item) is int for prompt in value for item in prompt):
            return value
    raise ValueError("allowed: a text, texts, token ids, or lists of token ids")


@with_sampling_fields()
class CompletionRequest(StrictModel):
    """Body of /v1/completions."""

    model: str | None = Field(None, description="A served name; left out: the model this server runs.")
    prompt: Annotated[Prompts, PlainValidator(check_prompt, json_schema_input_type=Prompts)] = Field(
        description="A text, texts, token ids or lists of token ids; token ids are taken as they are."
    )
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(16, description="Most tokens of each choice; null goes on to the end.")
    n: int | None = Field(None, description="Choices per prompt; choice i uses seed + i.")
    best_of: int | None = Field(None, description="Generate this many, answer with the n most likely.")
    stop: str | Annotated[list[str], StopAtFirst()] | None = None
    logprobs: int | None = Field(None, ge=0, description="Alternatives per token; 0 reports the chosen token only.")
    prompt_logprobs: int | None = Field(None, ge=0, description="The same for the tokens of the prompt.")
    echo: bool | None = Field(None, description="Put the prompt in front of the text.")
    suffix: Literal[""] | None = Field(None, description="Text after the completion is not supported.")
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool | None = Field(
        None, description="Report prompt_token_ids (in a stream: once, first) and token_ids."
    )
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1, description="Lower runs sooner.")
    cache_salt: str | None = Field(None, max_length=256, description="Prefixes are shared within one salt only.")
    user: str | None = Field(None, max_length=512, description="Goes into the request log.")
