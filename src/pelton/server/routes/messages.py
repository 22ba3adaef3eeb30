"""/v1/messages and /v1/messages/count_tokens, Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pelton.core.errors import InvalidParameterError
from pelton.server import anthropic_events
from pelton.server.answers import JsonAnswer
from pelton.server.anthropic_events import PING_FRAME, MessageWriter, write_error
from pelton.server.bodies import document_body, read_body
from pelton.server.chat import ChatGeneration
from pelton.server.chat_parsers import make_parser_maker
from pelton.server.encoding import encode_ask
from pelton.server.errors import ErrorInfo, describe_error
from pelton.server.foreign_chat import make_chat_request, make_foreign_ask
from pelton.server.generation import Ask, check_model
from pelton.server.schema.anthropic import CountTokensRequest, MessagesRequest
from pelton.server.schema.chat import ChatCompletionRequest
from pelton.server.sse import EventStream, run_until_disconnect, start_stream
from pelton.server.state import ServerState, get_ids, get_log_fields, get_state

router = APIRouter(tags=["anthropic"])
PREFIXES = ("/v1/messages",)  # also of what is not here, such as /v1/messages/batches
_MESSAGES = [{"role": "user", "content": "How does inference work?"}]
_EXAMPLE: dict[str, object] = {"model": "pelton", "max_tokens": 64, "messages": _MESSAGES}
_COUNT_EXAMPLE: dict[str, object] = {"model": "pelton", "messages": _MESSAGES}

# Fields of chat completions, and what they are called here.
_NAMES = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "structure": "output_config.format",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}


def make_error_body(info: ErrorInfo) -> Mapping[str, object]:
    """Errors of these paths are Anthropic's."""
    return anthropic_events.make_error_body(info)


@router.post(
    "/v1/messages",
    operation_id="create_message",
    summary="Answer a conversation (Anthropic)",
    openapi_extra=document_body(MessagesRequest, _EXAMPLE),
)
async def create_message(request: Request) -> Response:
    """One message, or a stream of server-sent events that ends with `message_stop`."""
    state = get_state(request)
    body = await read_body(request, MessagesRequest)
    if body.metadata is not None:
        get_log_fields(request)["user"] = body.metadata.user_id
    model = check_model(state, body.model)
    writer = MessageWriter(get_ids(request).make("msg_"), model)
    values = {"max_tokens": body.max_tokens, "stop": body.stop_sequences, "stream": body.stream}
    chat_body, ask = _make_ask(state, body, values)
    chat = ChatGeneration(request, ask, make_parser_maker(state.engine, chat_body))
    if not body.stream:
        return JsonAnswer(writer.write_whole(await run_until_disconnect(request, chat.collect())))
    started = await start_stream(request, _write_frames(chat, writer), state.options.keep_alive_s)
    return EventStream(
        started,
        keep_alive_s=state.options.keep_alive_s,
        keep_alive=PING_FRAME,
        make_error=lambda error: write_error(describe_error(error)),
    )


@router.post(
    "/v1/messages/count_tokens",
    operation_id="count_message_tokens",
    summary="Tokens of a conversation's prompt (Anthropic)",
    openapi_extra=document_body(CountTokensRequest, _COUNT_EXAMPLE),
)
async def count_message_tokens(request: Request) -> JsonAnswer:
    """How many tokens the model would read, tools and system message included. Nothing is generated."""
    state = get_state(request)
    body = await read_body(request, CountTokensRequest)
    check_model(state, body.model)
    _, ask = _make_ask(state, body, {})
    return JsonAnswer({"input_tokens": len(await encode_ask(state, ask))})


def _make_ask(
    state: ServerState, body: CountTokensRequest, values: Mapping[str, object]
) -> tuple[ChatCompletionRequest, Ask]:
    """The request as one for chat completions, and its ask. Raises errors that name Anthropic's fields."""
    _check_roles(body)
    choice = body.tool_choice
    tools, tool_choice = body.to_tools(), body.to_tool_choice()
    form = None if body.output_config is None else body.output_config.format
    schema = None if form is None else {"name": "output", "schema": form.schema_}
    chat_values = {
        **values,
        "messages": body.to_messages(),
        "tools": None if tools is None else [tool.model_dump(exclude_none=True) for tool in tools],
        "tool_choice": tool_choice if tool_choice is None or isinstance(tool_choice, str) else tool_choice.model_dump(),
        "parallel_tool_calls": False if choice is not None and choice.disable_parallel_tool_use else None,
        "response_format": None if schema is None else {"type": "json_schema", "json_schema": schema},
    }
    chat_body = make_chat_request(body, chat_values, _NAMES)
    return chat_body, make_foreign_ask(chat_body, state.options, _NAMES)


def _check_roles(body: CountTokensRequest) -> None:
    if body.messages[-1].role != "user":
        place = f"messages[{len(body.messages) - 1}].role"
        raise InvalidParameterError(place, "assistant", "user; an answer that is begun cannot be continued")
    choice = body.tool_choice
    if choice is not None and (choice.type == "tool") != (choice.name is not None):
        raise InvalidParameterError("tool_choice.name", choice.name, "a tool's name with type tool, else nothing")
    for number, message in enumerate(body.messages):
        if isinstance(message.content, str):
            continue
        wrong = ("tool_result",) if message.role == "assistant" else ("tool_use", "thinking")
        for place_in_turn, block in enumerate(message.content):
            if block.type in wrong:
                name = f"messages[{number}].content[{place_in_turn}].type"
                raise InvalidParameterError(name, block.type, f"other blocks in a turn of the {message.role}")


async def _write_frames(chat: ChatGeneration, writer: MessageWriter) -> AsyncGenerator[bytes, None]:
    deltas = chat.deltas()
    is_started = False
    try:
        async for delta in deltas:
            frame = writer.write(delta)
            if not is_started:
                is_started = True
                frame = writer.write_start(chat.num_prompt_tokens) + frame
            if frame:
                yield frame
    finally:
        await deltas.aclose()
