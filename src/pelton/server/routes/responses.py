"""/v1/responses, OpenAI's Responses API for text and functions. Nothing is stored."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pelton.core.errors import InvalidParameterError
from pelton.server.answers import JsonAnswer
from pelton.server.bodies import document_body, read_body
from pelton.server.chat import ChatGeneration
from pelton.server.chat_parsers import make_parser_maker
from pelton.server.errors import describe_error
from pelton.server.foreign_chat import make_chat_request, make_foreign_ask
from pelton.server.generation import check_model
from pelton.server.response_events import ResponseHead, ResponseWriter
from pelton.server.schema.chat import ChatCompletionRequest
from pelton.server.schema.responses import ResponsesRequest
from pelton.server.sse import EventStream, run_until_disconnect, start_stream
from pelton.server.state import ServerState, get_ids, get_log_fields, get_state

router = APIRouter(tags=["openai"])
_EXAMPLE: dict[str, object] = {"input": "How does inference work?", "max_output_tokens": 64}

# Fields of chat completions, and what they are called here.
_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "structure": "text.format",
}


@router.post(
    "/v1/responses",
    operation_id="create_response",
    summary="Answer a conversation (Responses API)",
    openapi_extra=document_body(ResponsesRequest, _EXAMPLE),
)
async def create_response(request: Request) -> Response:
    """One response object, or a stream of server-sent events that ends with `response.completed` or `.incomplete`."""
    state = get_state(request)
    body = await read_body(request, ResponsesRequest)
    _note_user(request, body)
    head = _make_head(state, body, get_ids(request).make("resp_"))
    chat_body = _make_chat_request(body)
    ask = make_foreign_ask(chat_body, state.options, _NAMES)
    chat = ChatGeneration(request, ask, make_parser_maker(state.engine, chat_body))
    writer = ResponseWriter(head, state.engine.tokenizer)
    if not body.stream:
        return JsonAnswer(writer.write_whole(await run_until_disconnect(request, chat.collect())))
    frames = _write_frames(chat, writer)
    started = await start_stream(request, frames, state.options.keep_alive_s)
    return EventStream(
        started,
        keep_alive_s=state.options.keep_alive_s,
        make_error=lambda error: writer.write_error(describe_error(error)),
    )


def _note_user(request: Request, body: ResponsesRequest) -> None:
    names = ("user", "safety_identifier", "prompt_cache_key")
    get_log_fields(request).update({name: getattr(body, name) for name in names if getattr(body, name) is not None})


def _make_head(state: ServerState, body: ResponsesRequest, response_id: str) -> ResponseHead:
    shown = body.model_dump(by_alias=True, exclude_none=True, include={"tools", "tool_choice", "text"})
    settings = {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": getattr(body, "temperature", None),
        "text": {"format": {"type": "text"}, **shown.get("text", {})},
        "tool_choice": shown.get("tool_choice", "auto"),
        "tools": shown.get("tools", []),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": getattr(body, "top_p", None),
        "truncation": "disabled",
        "user": body.user,
    }
    return ResponseHead(
        id=response_id,
        created=int(time.time()),
        model=check_model(state, body.model),
        settings=settings,
        with_logprobs=bool(body.include),
    )


def _make_chat_request(body: ResponsesRequest) -> ChatCompletionRequest:
    messages = body.to_messages()
    if not messages or not body.input:
        raise InvalidParameterError("input", body.input, "a text, or at least one message")
    if body.top_logprobs and not body.include:
        raise InvalidParameterError(
            "top_logprobs", body.top_logprobs, '0, unless include has "message.output_text.logprobs"'
        )
    tools, choice = body.to_tools(), body.to_tool_choice()
    values = {
        "messages": messages,
        "tools": None if tools is None else [tool.model_dump(exclude_none=True) for tool in tools],
        "tool_choice": choice if choice is None or isinstance(choice, str) else choice.model_dump(),
        "parallel_tool_calls": body.parallel_tool_calls,
        "max_tokens": body.max_output_tokens,
        "stop": body.stop,
        "stream": body.stream,
        "logprobs": True if body.include else None,
        "top_logprobs": body.top_logprobs if body.include else None,
        "response_format": _make_format(body),
        "chat_template_kwargs": body.chat_template_kwargs,
        "priority": body.priority,
        "cache_salt": body.cache_salt,
    }
    return make_chat_request(body, values, _NAMES)


def _make_format(body: ResponsesRequest) -> dict[str, object] | None:
    """`text.format` as chat completions have it, where a schema is one level deeper."""
    form = None if body.text is None else body.text.format
    if form is None:
        return None
    if form.type != "json_schema":
        return {"type": form.type}
    if form.schema_ is None:
        raise InvalidParameterError("text.format.schema", None, "a JSON schema")
    return {"type": form.type, "json_schema": {"name": form.name or "output", "schema": form.schema_}}


async def _write_frames(chat: ChatGeneration, writer: ResponseWriter) -> AsyncGenerator[bytes, None]:
    deltas = chat.deltas()
    is_started = False
    try:
        async for delta in deltas:
            # The first events must come first: write() numbers them as it makes them.
            frame = b"" if is_started else writer.write_start()
            is_started = True
            frame += writer.write(delta)
            if frame:
                yield frame
    finally:
        await deltas.aclose()
