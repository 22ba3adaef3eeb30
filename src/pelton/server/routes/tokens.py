"""/tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from pelton.core.errors import InvalidParameterError
from pelton.server.answers import JsonAnswer
from pelton.server.bodies import document_body, read_body
from pelton.server.encoding import encode_messages, encode_text, run_off_loop
from pelton.server.generation import check_model
from pelton.server.logprobs import describe_token
from pelton.server.schema.tokens import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from pelton.server.state import ServerState, get_state

router = APIRouter(tags=["tokens"])


@router.post(
    "/tokenize",
    operation_id="tokenize",
    summary="Token ids of a text or of a conversation",
    openapi_extra=document_body(TokenizeRequest, {"prompt": "How does inference work?"}),
)
async def tokenize(request: Request) -> JsonAnswer:
    """The ids the model would read. A text may be longer than the context, but no longer than a body may be."""
    state = get_state(request)
    body = await read_body(request, TokenizeRequest)
    check_model(state, body.model)
    return JsonAnswer(await run_off_loop(state, lambda: _tokenize(state, body)))


@router.post(
    "/detokenize",
    operation_id="detokenize",
    summary="Text of token ids",
    openapi_extra=document_body(DetokenizeRequest, {"tokens": [2020, 1072]}),
)
async def detokenize(request: Request) -> JsonAnswer:
    """The text of the ids, special tokens included."""
    state = get_state(request)
    body = await read_body(request, DetokenizeRequest)
    check_model(state, body.model)
    return JsonAnswer(await run_off_loop(state, lambda: _detokenize(state, body)))


def _tokenize(state: ServerState, body: TokenizeRequest) -> TokenizeResponse:
    tokenizer = state.engine.tokenizer
    if body.prompt is not None:
        token_ids = encode_text(state, body.prompt, "prompt", add_special=body.add_special_tokens is not False)
    else:
        assert body.messages is not None, "the schema has checked that there is one of the two"
        token_ids = encode_messages(
            state,
            [message.to_template() for message in body.messages],
            tools=None if body.tools is None else [tool.model_dump(exclude_none=True) for tool in body.tools],
            variables=body.chat_template_kwargs,
            add_generation_prompt=body.add_generation_prompt is not False,
        )
    return {
        "count": len(token_ids),
        "max_model_len": state.engine.context_length,
        "tokens": token_ids,
        "token_strs": [describe_token(tokenizer, i) for i in token_ids] if body.return_token_strs else None,
    }


def _detokenize(state: ServerState, body: DetokenizeRequest) -> DetokenizeResponse:
    tokenizer = state.engine.tokenizer
    for position, token_id in enumerate(body.tokens):
        if not 0 <= token_id < tokenizer.vocab_size:
            raise InvalidParameterError(f"tokens[{position}]", token_id, f"token ids 0 to {tokenizer.vocab_size - 1}")
    return {"prompt": tokenizer.decode(body.tokens, skip_special=False)}
