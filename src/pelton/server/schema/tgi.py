"""Schema of TGI's /generate and /generate_stream. Fields are TGI's; those without a meaning here are refused."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from typing_extensions import NotRequired, TypedDict

from pelton.server.answers import TimingsBody
from pelton.server.bodies import StrictModel

DEFAULT_MAX_NEW_TOKENS = 100


class Grammar(StrictModel):
    """What the text must be: a JSON schema, or a regular expression."""

    type: Literal["json", "json_schema", "regex"]
    value: dict[str, object] | str | bool


class GenerateParameters(StrictModel):
    """TGI's `parameters`. Without `do_sample` and without a field that shapes the draw, decoding is greedy."""

    adapter_id: Literal[""] | None = Field(None, description="Adapters are not supported.")
    best_of: int | None = Field(None, ge=1, description="Generate this many, answer with the most likely.")
    decoder_input_details: bool | None = Field(None, description="Report the prompt's tokens; needs details.")
    details: bool | None = Field(None, description="Report tokens and why the text ended.")
    do_sample: bool | None = Field(None, description="Draw tokens instead of taking the most likely ones.")
    frequency_penalty: float | None = None
    grammar: Grammar | None = None
    max_new_tokens: int | None = Field(
        None, ge=1, description=f"Most tokens to generate; {DEFAULT_MAX_NEW_TOKENS} if left out."
    )
    repetition_penalty: float | None = Field(None, gt=0)
    return_full_text: bool | None = Field(None, description="Put the prompt in front of generated_text.")
    seed: int | None = Field(None, ge=0, le=2**64 - 1)
    stop: list[str] | None = Field(None, description="Stop strings; they are not part of generated_text.")
    temperature: float | None = Field(None, gt=0)
    top_k: int | None = Field(None, ge=1)
    top_n_tokens: int | None = Field(None, ge=0, description="Report the most likely tokens at each place.")
    top_p: float | None = Field(None, gt=0, le=1)
    truncate: None = Field(None, description="Prompts are never truncated.")
    typical_p: float | None = Field(None, gt=0, le=1)
    watermark: Literal[False] | None = Field(None, description="Watermarks are not supported.")


class GenerateRequest(StrictModel):
    """Body of /generate and /generate_stream."""

    inputs: str = Field(description="The prompt.")
    parameters: GenerateParameters | None = None


class CompatGenerateRequest(GenerateRequest):
    """Body of POST /: the same, and `stream` chooses between the two."""

    stream: bool | None = None


class TokenBody(TypedDict):
    """A token that was generated, or an alternative."""

    id: int
    text: str
    logprob: float
    special: bool


class PrefillTokenBody(TypedDict):
    """A token of the prompt; nothing predicts the first one."""

    id: int
    text: str
    logprob: float | None


class SequenceBody(TypedDict):
    """What `details` says of one choice. `generated_text` is there for those of `best_of_sequences` only."""

    generated_text: NotRequired[str]
    finish_reason: str
    generated_tokens: int
    seed: int
    prefill: list[PrefillTokenBody]
    tokens: list[TokenBody]
    top_tokens: NotRequired[list[list[TokenBody]]]
    best_of_sequences: NotRequired[list[SequenceBody]]


class GenerateResponse(TypedDict):
    """Answer of /generate."""

    generated_text: str
    details: NotRequired[SequenceBody]
    timings: TimingsBody


class StreamDetails(TypedDict):
    """`details` of the last event of a stream."""

    finish_reason: str
    generated_tokens: int
    input_length: int
    seed: int


class StreamEvent(TypedDict):
    """One event of /generate_stream: one token."""

    index: int
    token: TokenBody
    top_tokens: NotRequired[list[TokenBody]]
    generated_text: str | None
    details: StreamDetails | None
    timings: NotRequired[TimingsBody]
