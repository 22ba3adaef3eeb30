"""/v1/embeddings, the OpenAI API: vectors of texts from the model's final hidden states."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter
from starlette.requests import Request

from pelton.core.embedding import EmbeddingParams
from pelton.core.errors import InvalidParameterError
from pelton.server.answers import JsonAnswer
from pelton.server.bodies import document_body, read_body
from pelton.server.encoding import run_off_loop
from pelton.server.generation import check_model
from pelton.server.options import ServerOptions
from pelton.server.schema.embeddings import EmbeddingsRequest
from pelton.server.sse import run_until_disconnect
from pelton.server.state import get_caller, get_log_fields, get_state

router = APIRouter(tags=["openai"])
_EXAMPLE: dict[str, object] = {"input": ["The sea is blue.", "The sky is blue."]}

Vector = npt.NDArray[np.float32]


@router.post(
    "/v1/embeddings",
    operation_id="create_embeddings",
    summary="Vectors of texts",
    openapi_extra=document_body(EmbeddingsRequest, _EXAMPLE),
)
async def create_embeddings(request: Request) -> JsonAnswer:
    """One vector per input, in the order of the inputs."""
    state = get_state(request)
    body = await read_body(request, EmbeddingsRequest)
    if body.user is not None:
        get_log_fields(request)["user"] = body.user
    model = check_model(state, body.model)
    hidden_size = state.engine.model_config.hidden_size
    if body.dimensions is not None and body.dimensions != hidden_size:
        raise InvalidParameterError("dimensions", body.dimensions, f"{hidden_size}, the hidden size of this model")
    params = EmbeddingParams(pooling=body.pooling or "mean", normalize=body.normalize is not False)
    inputs, limit = list_inputs(body, state.options), state.options.max_prompt_tokens
    work = state.engine.embed(inputs, params, name="input", max_prompt_tokens=limit)
    result = await run_until_disconnect(request, work)
    state.limiter.charge_tokens(get_caller(request).name, result.num_tokens)
    is_base64 = body.encoding_format == "base64"
    data = await run_off_loop(state, lambda: _write_vectors(result.vectors, is_base64=is_base64))
    return JsonAnswer(
        {
            "object": "list",
            "data": data,
            "model": model,
            "usage": {"prompt_tokens": result.num_tokens, "total_tokens": result.num_tokens},
            "timings": _make_timings(result.num_tokens, result.queue_ms, result.compute_ms),
        }
    )


def list_inputs(body: EmbeddingsRequest, options: ServerOptions) -> list[str | list[int]]:
    """The texts of a request; raises `InvalidParameterError` for none, or too many."""
    given = body.input
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidParameterError("input", given, "a text, token ids, or a list of at least one of them")
    # A list of integers is one text; pydantic has checked that lists are not mixed.
    if isinstance(given[0], int):
        return [[token_id for token_id in given if isinstance(token_id, int)]]
    if len(given) > options.max_batch_prompts:
        raise InvalidParameterError("input", f"{len(given)} texts", f"at most {options.max_batch_prompts} texts")
    return [item for item in given if not isinstance(item, int)]


def _write_vectors(vectors: Sequence[Vector], *, is_base64: bool) -> list[dict[str, object]]:
    def write(vector: Vector) -> object:
        if is_base64:
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return vector.tolist()

    return [{"object": "embedding", "index": i, "embedding": write(vector)} for i, vector in enumerate(vectors)]


def _make_timings(num_tokens: int, queue_ms: float, compute_ms: float) -> dict[str, float]:
    """The part of `timings` that there is without decoding; `prompt_ms` is time spent computing, others' left out."""
    return {
        "prompt_n": num_tokens,
        "prompt_ms": round(compute_ms, 3),
        "prompt_per_token_ms": round(compute_ms / num_tokens, 4),
        "prompt_per_second": round(num_tokens / compute_ms * 1e3, 2) if compute_ms > 0 else 0.0,
        "queue_ms": round(queue_ms, 3),
    }
