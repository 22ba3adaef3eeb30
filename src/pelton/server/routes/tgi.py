"""/generate, /generate_stream, POST / and /info: the API of text-generation-inference."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pelton import __version__
from pelton.server import tgi_events
from pelton.server.answers import JsonAnswer
from pelton.server.bodies import document_body, read_body
from pelton.server.errors import ErrorInfo, describe_error
from pelton.server.foreign_chat import renamed_errors
from pelton.server.generation import Ask, Generation
from pelton.server.schema.tgi import CompatGenerateRequest, GenerateRequest
from pelton.server.sse import EventStream, run_until_disconnect, start_stream
from pelton.server.state import ServerState, get_state
from pelton.server.tgi_events import StreamWriter, make_answer
from pelton.server.tgi_request import PARAMETER_NAMES, make_params

router = APIRouter(tags=["tgi"])
_EXAMPLE: dict[str, object] = {
    "inputs": "The capital of France is",
    "parameters": {"max_new_tokens": 16, "details": True},
}


def make_error_body(info: ErrorInfo) -> Mapping[str, object]:
    """Errors of these paths are TGI's."""
    return tgi_events.make_error_body(info)


@router.post(
    "/generate",
    operation_id="tgi_generate",
    summary="Continue a text (TGI)",
    openapi_extra=document_body(GenerateRequest, _EXAMPLE),
)
async def generate(request: Request) -> Response:
    """The whole text."""
    body = await read_body(request, GenerateRequest)
    return JsonAnswer(await _generate(request, body))


@router.post(
    "/generate_stream",
    operation_id="tgi_generate_stream",
    summary="Continue a text, token by token (TGI)",
    openapi_extra=document_body(GenerateRequest, _EXAMPLE),
)
async def generate_stream(request: Request) -> Response:
    """Server-sent events, one per token; the last one has the whole text."""
    body = await read_body(request, GenerateRequest)
    return await _stream(request, body)


@router.post(
    "/",
    operation_id="tgi_generate_compat",
    summary="Continue a text; `stream` says how (TGI)",
    openapi_extra=document_body(CompatGenerateRequest, _EXAMPLE),
)
async def generate_compat(request: Request) -> Response:
    """What huggingface_hub's client calls: /generate_stream with `stream`, else /generate inside a list."""
    body = await read_body(request, CompatGenerateRequest)
    if body.stream:
        return await _stream(request, body)
    return JsonAnswer([await _generate(request, body)])


@router.get("/info", operation_id="tgi_info", summary="Model and limits (TGI)")
async def get_info(request: Request) -> JsonAnswer:
    """What this server runs and allows."""
    state = get_state(request)
    options, context_length = state.options, state.engine.context_length
    return JsonAnswer(
        {
            "model_id": state.model_names[0],
            "model_sha": None,
            "model_pipeline_tag": "text-generation",
            "model_device_type": "cpu",
            "max_concurrent_requests": state.engine.config.max_num_seqs,
            "max_best_of": options.max_choices,
            "max_stop_sequences": options.max_stop_strings,
            "max_input_tokens": min(context_length - 1, options.max_prompt_tokens or context_length),
            "max_total_tokens": context_length,
            "max_client_batch_size": 1,
            "router": "pelton",
            "version": __version__,
        }
    )


async def _generate(request: Request, body: GenerateRequest) -> Mapping[str, object]:
    state = get_state(request)
    generation = Generation(request, _make_ask(state, body, is_stream=False))
    result = await run_until_disconnect(request, generation.collect())
    return make_answer(state.engine.tokenizer, body, result)


async def _stream(request: Request, body: GenerateRequest) -> Response:
    state = get_state(request)
    generation = Generation(request, _make_ask(state, body, is_stream=True))
    frames = _write_frames(generation, StreamWriter(state.engine.tokenizer, body))
    started = await start_stream(request, frames, state.options.keep_alive_s)
    return EventStream(
        started,
        keep_alive_s=state.options.keep_alive_s,
        make_error=lambda error: tgi_events.write_error(describe_error(error)),
    )


def _make_ask(state: ServerState, body: GenerateRequest, *, is_stream: bool) -> Ask:
    with renamed_errors(PARAMETER_NAMES):
        params = make_params(body.parameters, state.options, is_stream=is_stream)
    return Ask(
        params=params, prompt=body.inputs, field_names={**PARAMETER_NAMES, "prompt": "inputs"}, is_stream=is_stream
    )


async def _write_frames(generation: Generation, writer: StreamWriter) -> AsyncGenerator[bytes, None]:
    outputs = generation.outputs()
    try:
        async for output in outputs:
            frame = writer.write(output)
            if frame:
                yield frame
    finally:
        await outputs.aclose()
