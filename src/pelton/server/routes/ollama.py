"""Ollama's API: /api/chat, /api/generate, /api/tags, /api/show, /api/version."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pelton import __version__
from pelton.core.errors import InvalidParameterError
from pelton.server import ollama_lines
from pelton.server.answer_parser import PlainParser
from pelton.server.answers import JsonAnswer
from pelton.server.bodies import document_body, read_body
from pelton.server.chat import ChatGeneration
from pelton.server.chat_parsers import ParserMaker, make_parser_maker
from pelton.server.errors import ErrorInfo, describe_error
from pelton.server.foreign_chat import make_foreign_ask
from pelton.server.generation import Ask, check_model
from pelton.server.ollama_lines import LineWriter, write_line
from pelton.server.ollama_models import describe_model, list_models
from pelton.server.ollama_request import FIELD_NAMES, make_chat_body, make_raw_ask
from pelton.server.schema.chat import ChatCompletionRequest
from pelton.server.schema.ollama import OllamaChatRequest, OllamaGenerateRequest, OllamaShowRequest
from pelton.server.sse import EventStream, run_until_disconnect, start_stream
from pelton.server.state import ServerState, get_state

router = APIRouter(tags=["ollama"])
PREFIXES = ("/api",)  # also of what is not here, such as /api/pull
NDJSON = "application/x-ndjson"
_CHAT_EXAMPLE: dict[str, object] = {
    "model": "pelton",
    "messages": [{"role": "user", "content": "How does inference work?"}],
}
_GENERATE_EXAMPLE: dict[str, object] = {
    "model": "pelton",
    "prompt": "How does inference work?",
    "options": {"num_predict": 32},
}


def make_error_body(info: ErrorInfo) -> Mapping[str, object]:
    """Errors of these paths are Ollama's."""
    return ollama_lines.make_error_body(info)


@router.post(
    "/api/chat",
    operation_id="ollama_chat",
    summary="Answer a conversation (Ollama)",
    openapi_extra=document_body(OllamaChatRequest, _CHAT_EXAMPLE),
)
async def chat(request: Request) -> Response:
    """Lines of JSON, or with `stream: false` one object."""
    state = get_state(request)
    body = await read_body(request, OllamaChatRequest)
    writer = LineWriter.make(_check_name(state, body.model), state.engine.tokenizer, is_chat=True)
    if not body.messages:
        return _say_loaded(writer, is_stream=body.stream is not False)
    messages = [message.to_template() for message in body.messages]
    return await _answer_chat(request, writer, make_chat_body(state, body, messages, tools=body.tools))


@router.post(
    "/api/generate",
    operation_id="ollama_generate",
    summary="Answer a prompt (Ollama)",
    openapi_extra=document_body(OllamaGenerateRequest, _GENERATE_EXAMPLE),
)
async def generate(request: Request) -> Response:
    """Lines of JSON, or with `stream: false` one object. The prompt is one message of a chat, unless it is `raw`."""
    state = get_state(request)
    body = await read_body(request, OllamaGenerateRequest)
    writer = LineWriter.make(_check_name(state, body.model), state.engine.tokenizer, is_chat=False)
    if not body.prompt:
        return _say_loaded(writer, is_stream=body.stream is not False)
    if body.raw and body.system:
        raise InvalidParameterError("system", body.system, "nothing with raw: the prompt is taken as it is")
    if body.raw:
        return await _answer(request, writer, make_raw_ask(state, body), lambda prompt_end: PlainParser())
    messages: list[dict[str, object]] = [{"role": "system", "content": body.system}] if body.system else []
    messages.append({"role": "user", "content": body.prompt})
    return await _answer_chat(request, writer, make_chat_body(state, body, messages), {"messages": "prompt"})


@router.get("/api/tags", operation_id="ollama_tags", summary="List models (Ollama)")
async def get_tags(request: Request) -> JsonAnswer:
    """The names this server answers to."""
    return JsonAnswer({"models": list_models(get_state(request))})


@router.post(
    "/api/show",
    operation_id="ollama_show",
    summary="Describe a model (Ollama)",
    openapi_extra=document_body(OllamaShowRequest, {"model": "pelton"}),
)
async def show(request: Request) -> JsonAnswer:
    """Shape, template and capabilities of the model."""
    state = get_state(request)
    body = await read_body(request, OllamaShowRequest)
    name = body.model or body.name
    if not name:
        raise InvalidParameterError("model", name, "the name of a model")
    _check_name(state, name)
    return JsonAnswer(describe_model(state))


@router.get("/api/version", operation_id="ollama_version", summary="Version (Ollama)")
async def get_version() -> JsonAnswer:
    """Pelton's version, not one of Ollama's."""
    return JsonAnswer({"version": __version__})


def _check_name(state: ServerState, name: str) -> str:
    """Ollama's clients may put a tag behind a name; `latest` means none. Raises `ModelNotFoundError`."""
    if name not in state.model_names and name.endswith(":latest"):
        check_model(state, name.removesuffix(":latest"))
        return name
    return check_model(state, name)


def _say_loaded(writer: LineWriter, *, is_stream: bool) -> Response:
    answer = writer.make_loaded()
    if not is_stream:
        return JsonAnswer(answer)
    return Response(write_line(answer), media_type=NDJSON)


async def _answer_chat(
    request: Request, writer: LineWriter, body: ChatCompletionRequest, field_names: Mapping[str, str] | None = None
) -> Response:
    state = get_state(request)
    ask = make_foreign_ask(body, state.options, {**FIELD_NAMES, **(field_names or {})})
    make_parser = make_parser_maker(state.engine, body)
    return await _answer(request, writer, ask, make_parser)


async def _answer(request: Request, writer: LineWriter, ask: Ask, make_parser: ParserMaker) -> Response:
    state = get_state(request)
    generation = ChatGeneration(request, ask, make_parser)
    if not ask.is_stream:
        return JsonAnswer(writer.write_whole(await run_until_disconnect(request, generation.collect())))
    started = await start_stream(request, _write_lines(generation, writer), state.options.keep_alive_s)
    return EventStream(
        started,
        keep_alive_s=state.options.keep_alive_s,
        keep_alive=b"",
        make_error=lambda error: write_line(make_error_body(describe_error(error))),
        media_type=NDJSON,
    )


async def _write_lines(generation: ChatGeneration, writer: LineWriter) -> AsyncGenerator[bytes, None]:
    deltas = generation.deltas()
    try:
        async for delta in deltas:
            lines = writer.write(delta)
            if lines:
                yield lines
    finally:
        await deltas.aclose()
