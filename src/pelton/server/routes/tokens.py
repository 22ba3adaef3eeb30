"""/tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from pelton.core.errors import InvalidParameterError
from pelton.core.sampling_params import SamplingParams
from pelton.core.tools import parse_tool_choice, parse_tools
from pelton.server.answers import JsonAnswer
from pelton.server.bodies import document_body, read_body
from pelton.server.encoding import encode_ask, encode_text, run_off_loop
from pelton.server.generation import Ask, check_model
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
    if body.prompt is not None:
        text, add_special = body.prompt, body.add_special_tokens is not False
        token_ids = await run_off_loop(state, lambda: encode_text(state, text, "prompt", add_special=add_special))
    else:
        token_ids = await encode_ask(
            state, _make_ask(body), add_generation_prompt=body.add_generation_prompt is not False
        )
    return JsonAnswer(await run_off_loop(state, lambda: _make_answer(state, body, token_ids)))


@router.post(
    "/detokenize",
    operation_id="detokenize",
    summary="Text of token ids",
    openapi_extra=document_body(DetokenizeRequest, {"tokens": [72, 105]}),
)
async def detokenize(request: Request) -> JsonAnswer:
    """The text of the ids, special tokens included."""
    state = get_state(request)
    body = await read_body(request, DetokenizeRequest)
    check_model(state, body.model)
    return JsonAnswer(await run_off_loop(state, lambda: _detokenize(state, body)))


def _make_ask(body: TokenizeRequest) -> Ask:
    tools = parse_tools(None if body.tools is None else [tool.model_dump(exclude_none=True) for tool in body.tools])
    return Ask(
        params=SamplingParams(),
        messages=[message.to_template() for message in body.messages or ()],
        tools=tools,
        tool_choice=parse_tool_choice(None, tools),
        template_variables=body.chat_template_kwargs or {},
        field_names={"variables": "chat_template_kwargs"},
    )


def _make_answer(state: ServerState, body: TokenizeRequest, token_ids: list[int]) -> TokenizeResponse:
    tokenizer = state.engine.tokenizer
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
