"""From Ollama's requests to chat requests and asks: `options`, `format`, `think`. Start at `make_chat_body`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pelton.core.errors import ContextLengthError, InvalidParameterError
from pelton.core.sampling_params import MAX_SEED
from pelton.server.foreign_chat import make_chat_request, renamed_errors
from pelton.server.generation import Ask
from pelton.server.schema.chat import ChatCompletionRequest, Tool
from pelton.server.schema.ollama import OllamaGenerateRequest, OllamaRequest, Options
from pelton.server.schema.sampling import check_stop, make_sampling_params
from pelton.server.schema.structure import ResponseFormat
from pelton.server.state import ServerState
from pelton.server.structures import make_structure

Json = dict[str, object]

# `options` that are fields of ours by another name.
_OPTION_NAMES = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
_SAME_OPTIONS = (
    "seed",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "presence_penalty",
    "frequency_penalty",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "stop",
)

# Our fields, and what they are called here.
FIELD_NAMES = {
    **{ours: f"options.{theirs}" for theirs, ours in _OPTION_NAMES.items()},
    **{name: f"options.{name}" for name in _SAME_OPTIONS},
    "response_format": "format",
    "structure": "format",
}


def make_chat_body(
    state: ServerState, body: OllamaRequest, messages: Sequence[Json], *, tools: Sequence[Tool] | None = None
) -> ChatCompletionRequest:
    """The request as one for chat completions; raises errors that name Ollama's fields."""
    values = {
        **_make_values(state, body),
        "messages": list(messages),
        "tools": [tool.model_dump(exclude_none=True) for tool in tools] if tools else None,
        "logprobs": body.logprobs,
        "top_logprobs": body.top_logprobs,
        "response_format": _make_format(body),
        "chat_template_kwargs": _make_variables(body),
    }
    return make_chat_request(body, values, FIELD_NAMES)


def make_raw_ask(state: ServerState, body: OllamaGenerateRequest) -> Ask:
    """The ask of a prompt that goes to the model as it is; raises as `make_chat_body`."""
    if body.think:
        raise InvalidParameterError("think", body.think, "false with raw: it is for the chat template")
    if body.top_logprobs and not body.logprobs:
        raise InvalidParameterError("top_logprobs", body.top_logprobs, "0 without logprobs")
    values = _make_values(state, body)
    stop = values.pop("stop", None)
    assert stop is None or isinstance(stop, (str, list)), "the schema has checked it"
    form = _make_format(body)
    response_format = None if form is None else ResponseFormat.model_validate(form)
    with renamed_errors(FIELD_NAMES):
        params = make_sampling_params(
            body,
            {
                **{name: value for name, value in values.items() if name != "stream"},
                "stop": check_stop(stop, state.options.max_stop_strings),
                "logprobs": (body.top_logprobs or 0) if body.logprobs else None,
                "structure": make_structure(response_format, None, state.options.max_schema_bytes),
            },
        )
    return Ask(params=params, prompt=body.prompt, field_names=FIELD_NAMES, is_stream=body.stream is not False)


def _make_values(state: ServerState, body: OllamaRequest) -> Json:
    options = Options() if body.options is None else body.options  # type: ignore[call-arg]  # all have defaults
    if options.num_ctx is not None and options.num_ctx > state.engine.context_length:
        raise ContextLengthError(
            "options.num_ctx", options.num_ctx, f"at most {state.engine.context_length}, the context of this server"
        )
    values: Json = {name: getattr(options, name) for name in _SAME_OPTIONS}
    values |= {ours: getattr(options, theirs) for theirs, ours in _OPTION_NAMES.items()}
    if options.num_predict is not None:
        values["max_tokens"] = _read_num_predict(options.num_predict)
    if options.repeat_last_n == 0:
        values["repetition_penalty"] = None
    if options.seed is not None:
        values["seed"] = _read_seed(options.seed)
    values["stream"] = body.stream is not False
    return values


def _read_num_predict(value: int) -> int | None:
    """-1 (no end) and -2 (fill the context) both end with the context here."""
    if value in (-1, -2):
        return None
    if value < 1:
        raise InvalidParameterError("options.num_predict", value, "at least 1, or -1 for no limit")
    return value


def _read_seed(value: int) -> int | None:
    """-1 asks for a random seed."""
    if value == -1:
        return None
    if not 0 <= value <= MAX_SEED:
        raise InvalidParameterError("options.seed", value, f"0 to {MAX_SEED}, or -1 for a random one")
    return value


def _make_format(body: OllamaRequest) -> Json | None:
    if not body.format:
        return None
    if isinstance(body.format, Mapping):
        return {"type": "json_schema", "json_schema": {"name": "format", "schema": body.format}}
    return {"type": "json_object"}


def _make_variables(body: OllamaRequest) -> Json | None:
    if body.think is None:
        return None
    if isinstance(body.think, bool):
        return {"enable_thinking": body.think}
    return {"enable_thinking": True, "reasoning_effort": body.think}
