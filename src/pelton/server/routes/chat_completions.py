"""/v1/chat/completions, the OpenAI API's chat."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pelton.server.answers import JsonAnswer, get_system_fingerprint
from pelton.server.bodies import document_body, read_body
from pelton.server.chat import ChatGeneration
from pelton.server.chat_chunks import AnswerHead, ChunkWriter, make_chat_completion
from pelton.server.chat_parsers import make_parser_maker
from pelton.server.chat_request import make_chat_ask
from pelton.server.generation import check_model
from pelton.server.schema.chat import ChatCompletionRequest, check_stream_options
from pelton.server.sse import DONE_FRAME, EventStream, run_until_disconnect, start_stream
from pelton.server.state import get_ids, get_log_fields, get_state

router = APIRouter(tags=["openai"])
_EXAMPLE = {"messages": [{"role": "user", "content": "How does inference work?"}], "max_tokens": 64}


@router.post(
    "/v1/chat/completions",
    operation_id="create_chat_completion",
    summary="Answer a conversation",
    openapi_extra=document_body(ChatCompletionRequest, _EXAMPLE),
)
async def create_chat_completion(request: Request) -> Response:
    """One answer, or a stream of server-sent events that ends with `[DONE]`."""
    state = get_state(request)
    body = await read_body(request, ChatCompletionRequest)
    if body.user is not None or body.metadata is not None:
        get_log_fields(request).update({"user": body.user, "metadata": body.metadata})
    head = AnswerHead(
        id=get_ids(request).make("chatcmpl-"),
        created=int(time.time()),
        model=check_model(state, body.model),
        system_fingerprint=get_system_fingerprint(state.engine),
        include_usage=check_stream_options(body.stream_options, body.stream),
        include_reasoning=body.include_reasoning is not False,
        return_token_ids=bool(body.return_token_ids),
    )
    chat = ChatGeneration(request, make_chat_ask(body, state.options), make_parser_maker(state.engine, body))
    if not body.stream:
        result = await run_until_disconnect(request, chat.collect())
        return JsonAnswer(make_chat_completion(head, state.engine.tokenizer, result))
    frames = _write_frames(chat, ChunkWriter(head, state.engine.tokenizer))
    started = await start_stream(request, frames, state.options.keep_alive_s)
    return EventStream(started, keep_alive_s=state.options.keep_alive_s)


async def _write_frames(chat: ChatGeneration, writer: ChunkWriter) -> AsyncGenerator[bytes, None]:
    deltas = chat.deltas()
    known: set[int] = set()
    try:
        async for delta in deltas:
            frame = writer.write(delta)
            if delta.index not in known:
                known.add(delta.index)
                frame = writer.write_role(delta.index, chat.prompt_token_ids) + frame
            if frame:
                yield frame
        yield DONE_FRAME
    finally:
        await deltas.aclose()
