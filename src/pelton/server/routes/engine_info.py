"""/v1/engine and /v1/kv_cache: what the engine is, and what its KV blocks are used for. The page shows both."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from pelton.server.answers import JsonAnswer
from pelton.server.encoding import run_off_loop
from pelton.server.state import get_state, get_trace

router = APIRouter(tags=["operations"])


@router.get("/v1/engine", operation_id="get_engine", summary="Model, machine, KV cache, queue and counters")
async def get_engine(request: Request) -> JsonAnswer:
    """Facts of the engine and figures as of its last step. Limits of the machine are null while none are stored."""
    state = get_state(request)

    def describe() -> dict[str, object]:
        return state.engine_facts.describe(state.engine, state.explainer.get_setup(state.engine))

    return JsonAnswer(await run_off_loop(state, describe))


@router.get("/v1/kv_cache", operation_id="get_kv_cache", summary="What the KV blocks are used for")
async def get_kv_cache(request: Request) -> JsonAnswer:
    """All blocks in their order, run-length coded; `?request=ID` tells those of one request apart.

    404 for a request that is not known. A finished one has no blocks any more.
    """
    state = get_state(request)
    request_id = request.query_params.get("request")
    trace = None if request_id is None else get_trace(state, request_id)
    facts = state.engine.load_facts
    runs = await run_off_loop(state, lambda: state.engine.list_kv_runs(trace))
    return JsonAnswer({"block_size": facts.block_size, "num_blocks": facts.num_kv_blocks, "runs": runs})
