"""/v1/models: the names this server answers to."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from pelton.server.answers import JsonAnswer
from pelton.server.generation import check_model
from pelton.server.state import ServerState, get_state

router = APIRouter(tags=["openai"])


@router.get("/v1/models", operation_id="list_models", summary="List the served model names")
async def list_models(request: Request) -> JsonAnswer:
    """All names, each an alias of the one model."""
    state = get_state(request)
    return JsonAnswer({"object": "list", "data": [_describe(state, name) for name in state.model_names]})


@router.get("/v1/models/{model:path}", operation_id="get_model", summary="One model")
async def get_model(request: Request, model: str) -> JsonAnswer:
    """One name; 404 for any other."""
    state = get_state(request)
    return JsonAnswer(_describe(state, check_model(state, model)))


def _describe(state: ServerState, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "pelton",
        "root": state.model_names[0],
        "max_model_len": state.engine.context_length,
    }
