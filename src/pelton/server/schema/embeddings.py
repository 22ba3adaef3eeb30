"""Schema of /v1/embeddings, the OpenAI API; `pooling` and `normalize` are Pelton's."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pelton.server.bodies import StrictModel


class EmbeddingsRequest(StrictModel):
    """Body of /v1/embeddings."""

    model: str | None = Field(None, description="A served name; left out: the model this server runs.")
    input: str | list[str] | list[int] | list[list[int]] = Field(
        description="A text, texts, token ids or lists of token ids; token ids are taken as they are."
    )
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Numbers (the default), or base64 of little-endian float32."
    )
    dimensions: int | None = Field(None, description="The model's hidden size; nothing else is possible.")
    user: str | None = Field(None, max_length=512, description="Goes into the request log.")
    pooling: Literal["mean", "last"] | None = Field(
        None, description="Mean of all tokens' hidden states (the default), or the last token's."
    )
    normalize: bool | None = Field(None, description="Scale vectors to length 1; the default.")
