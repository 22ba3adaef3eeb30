"""/v1/completions, the OpenAI API's plain text: one prompt or many, as text or token ids."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pelton.core.errors import InvalidParameterError
from pelton.server.answers import JsonAnswer, get_system_fingerprint
from pelton.server.bodies import document_body, read_body
from pelton.server.chat_chunks import AnswerHead
from pelton.server.completion_answer import CompletionShape, CompletionWriter, make_completion
from pelton.server.generation import Ask, Generation, check_model, collect_all, merge_outputs
from pelton.server.options import ServerOptions
from pelton.server.schema.chat import check_stream_options
from pelton.server.schema.completions import CompletionRequest
from pelton.server.schema.sampling import check_stop, make_sampling_params
from pelton.server.sse import DONE_FRAME, EventStream, run_until_disconnect, start_stream
from pelton.server.state import get_ids, get_log_fields, get_state
from pelton.server.structures import get_structure_names, make_structure
from pelton.text.tokenizer import Tokenizer

router = APIRouter(tags=["openai"])
_EXAMPLE = {"prompt": "The capital of France is", "max_tokens": 16}

Prompt = str | list[int]


@router.post(
    "/v1/completions",
    operation_id="create_completion",
    summary="Continue texts",
    openapi_extra=document_body(CompletionRequest, _EXAMPLE),
)
async def create_completion(request: Request) -> Response:
    """All choices of all prompts, or a stream of server-sent events that ends with `[DONE]`."""
    state = get_state(request)
    body = await read_body(request, CompletionRequest)
    if body.user is not None:
        get_log_fields(request)["user"] = body.user
    head = AnswerHead(
        id=get_ids(request).make("cmpl-"),
        created=int(time.time()),
        model=check_model(state, body.model),
        system_fingerprint=get_system_fingerprint(state.engine),
        include_usage=check_stream_options(body.stream_options, body.stream),
        return_token_ids=bool(body.return_token_ids),
    )
    prompts = list_prompts(body, state.options)
    asks = make_asks(body, prompts, state.options)
    shape = CompletionShape(
        num_choices=asks[0].params.n,
        echo=bool(body.echo),
        has_logprobs=body.logprobs is not None,
        has_prompt_logprobs=body.prompt_logprobs is not None,
    )
    tokenizer = state.engine.tokenizer
    generations = [Generation(request, ask) for ask in asks]
    texts = [_get_text(tokenizer, prompt) if body.echo else "" for prompt in prompts]
    if not body.stream:
        results = await run_until_disconnect(request, collect_all(generations))
        return JsonAnswer(make_completion(head, shape, tokenizer, results, texts))
    frames = _write_frames(generations, CompletionWriter(head, shape, tokenizer, texts))
    started = await start_stream(request, frames, state.options.keep_alive_s)
    return EventStream(started, keep_alive_s=state.options.keep_alive_s)


def list_prompts(body: CompletionRequest, options: ServerOptions) -> Sequence[Prompt]:
    """The prompts of a request; raises `InvalidParameterError` for none, or too many."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidParameterError("prompt", prompt, "a text, token ids, or a list of at least one of them")
    # A list of integers is one prompt; pydantic has checked that lists are not mixed.
    if isinstance(prompt[0], int):
        return [[token_id for token_id in prompt if isinstance(token_id, int)]]
    if len(prompt) > options.max_batch_prompts:
        raise InvalidParameterError("prompt", f"{len(prompt)} prompts", f"at most {options.max_batch_prompts} prompts")
    return [item for item in prompt if not isinstance(item, int)]


def make_asks(body: CompletionRequest, prompts: Sequence[Prompt], options: ServerOptions) -> list[Ask]:
    """One ask per prompt, all with the same parameters; raises `InvalidParameterError` naming the field at fault."""
    if body.stream and body.echo and body.logprobs is not None:
        raise InvalidParameterError("logprobs", body.logprobs, "null in a stream with echo")
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidParameterError("prompt_logprobs", body.prompt_logprobs, "null in a stream")
    structure_names = get_structure_names(body.structured_outputs)
    needs_prompt = body.echo and body.logprobs is not None and body.prompt_logprobs is None
    params = make_sampling_params(
        body,
        {
            "max_tokens": body.max_tokens,
            "n": body.n,
            "best_of": body.best_of,
            "stop": check_stop(body.stop, options.max_stop_strings),
            "logprobs": body.logprobs,
            "prompt_logprobs": body.logprobs if needs_prompt else body.prompt_logprobs,
            "structure": make_structure(body.response_format, body.structured_outputs, options.max_schema_bytes),
        },
    )
    return [
        Ask(
            params=params,
            prompt=prompt,
            field_names={"prompt": "prompt" if len(prompts) == 1 else f"prompt[{number}]", **structure_names},
            priority=body.priority or 0,
            cache_salt=body.cache_salt or "",
            is_stream=bool(body.stream),
        )
        for number, prompt in enumerate(prompts)
    ]


def _get_text(tokenizer: Tokenizer, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else tokenizer.decode(prompt)


async def _write_frames(generations: Sequence[Generation], writer: CompletionWriter) -> AsyncGenerator[bytes, None]:
    outputs = merge_outputs(generations)
    try:
        async for number, output in outputs:
            frame = writer.write(number, output, generations[number].prompt_token_ids)
            if frame:
                yield frame
        yield DONE_FRAME
    finally:
        await outputs.aclose()
