"""Fields that ask for structured output: OpenAI's `response_format` and vLLM's `structured_outputs`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pelton.server.bodies import StrictModel


class JsonSchemaFormat(StrictModel):
    """A named JSON schema. `strict` changes nothing: the schema always holds."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, object] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """What the text must be: anything, a JSON object, or JSON that fits a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(StrictModel):
    """Exactly one of these; `grammar` is Lark text."""

    json_: dict[str, object] | str | None = Field(None, alias="json")
    json_object: Literal[True] | None = None
    regex: str | None = None
    choice: list[str] | None = Field(None, min_length=1)
    grammar: str | None = None
