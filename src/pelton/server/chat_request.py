"""From a chat request's fields to an `Ask` and the parser of its answers. Start at `make_chat_ask`."""

from __future__ import annotations

from pelton.core.errors import InvalidParameterError, MalformedRequestError
from pelton.core.sampling_params import MAX_NUM_LOGPROBS, SamplingParams
from pelton.core.tools import parse_tool_choice, parse_tools
from pelton.server.generation import Ask
from pelton.server.options import ServerOptions
from pelton.server.schema.chat import ChatCompletionRequest, NamedTool
from pelton.server.schema.sampling import check_stop, make_sampling_params
from pelton.server.structures import get_structure_names, make_structure


def make_chat_ask(body: ChatCompletionRequest, options: ServerOptions) -> Ask:
    """The ask of a chat request.

    Raises `InvalidParameterError` or `MalformedRequestError` naming the field at fault.
    """
    tools = parse_tools(None if body.tools is None else [tool.model_dump(exclude_none=True) for tool in body.tools])
    choice = body.tool_choice.model_dump() if isinstance(body.tool_choice, NamedTool) else body.tool_choice
    return Ask(
        params=make_chat_params(body, options),
        tools=tools,
        tool_choice=parse_tool_choice(choice, tools, is_parallel=body.parallel_tool_calls is not False),
        messages=[message.to_template() for message in body.messages],
        template_variables=body.chat_template_kwargs or {},
        field_names={
            **get_structure_names(body.structured_outputs),
            "variables": "chat_template_kwargs",
        },
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
        is_stream=bool(body.stream),
    )


def make_chat_params(body: ChatCompletionRequest, options: ServerOptions) -> SamplingParams:
    """The sampling parameters of a chat request; raises as `make_chat_ask`."""
    limits = [name for name in ("max_tokens", "max_completion_tokens") if getattr(body, name) is not None]
    if len(limits) == 2 and body.max_tokens != body.max_completion_tokens:
        raise InvalidParameterError("max_tokens", body.max_tokens, "the same as max_completion_tokens, or unset")
    overrides = {
        "max_tokens": body.max_completion_tokens if body.max_tokens is None else body.max_tokens,
        "n": body.n,
        "best_of": body.best_of,
        "stop": check_stop(body.stop, options.max_stop_strings),
        "logprobs": _get_num_logprobs(body),
        "structure": make_structure(body.response_format, body.structured_outputs, options.max_schema_bytes),
    }
    try:
        return make_sampling_params(body, overrides)
    except InvalidParameterError as error:
        if error.parameter == "max_tokens" and limits:
            raise error.rename(limits[-1]) from error
        if error.parameter == "logprobs":
            raise error.rename("top_logprobs") from error
        raise


def _get_num_logprobs(body: ChatCompletionRequest) -> int | None:
    if not body.logprobs:
        if body.top_logprobs:
            raise MalformedRequestError("top_logprobs needs logprobs: true", "top_logprobs", "invalid_value")
        return None
    number = body.top_logprobs or 0
    if number > MAX_NUM_LOGPROBS:
        raise InvalidParameterError("top_logprobs", number, f"0 to {MAX_NUM_LOGPROBS}")
    return number
