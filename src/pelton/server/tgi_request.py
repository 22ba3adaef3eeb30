"""From TGI's `parameters` to `SamplingParams`. Start at `make_params`."""

from __future__ import annotations

from pelton.core.errors import InvalidParameterError
from pelton.core.sampling_params import SamplingParams
from pelton.core.structure import Structure
from pelton.server.options import ServerOptions
from pelton.server.schema.sampling import check_stop, make_sampling_params
from pelton.server.schema.structure import ResponseFormat, StructuredOutputs
from pelton.server.schema.tgi import DEFAULT_MAX_NEW_TOKENS, GenerateParameters
from pelton.server.structures import make_structure

# Sampling fields, and what they are called here.
PARAMETER_NAMES = {
    "max_tokens": "parameters.max_new_tokens",
    "logprobs": "parameters.top_n_tokens",
    "response_format": "parameters.grammar",
    "structure": "parameters.grammar",
    "structured_outputs": "parameters.grammar",
    **{
        name: f"parameters.{name}"
        for name in (
            "best_of",
            "frequency_penalty",
            "repetition_penalty",
            "seed",
            "stop",
            "temperature",
            "top_k",
            "top_p",
            "typical_p",
        )
    },
}


def make_params(parameters: GenerateParameters | None, options: ServerOptions, *, is_stream: bool) -> SamplingParams:
    """The sampling parameters of a request; raises `InvalidParameterError`, mostly with our names of the fields."""
    given = GenerateParameters() if parameters is None else parameters  # type: ignore[call-arg]  # all have defaults
    if is_stream and (given.best_of or 1) > 1:
        raise InvalidParameterError("best_of", given.best_of, "1 in a stream")
    if given.decoder_input_details and (is_stream or not given.details):
        raise InvalidParameterError(
            "parameters.decoder_input_details", True, "false in a stream and without parameters.details"
        )
    has_logprobs = is_stream or given.details or given.top_n_tokens
    return make_sampling_params(
        given,
        {
            "max_tokens": given.max_new_tokens or DEFAULT_MAX_NEW_TOKENS,
            "temperature": _choose_temperature(given),
            "stop": check_stop(given.stop, options.max_stop_strings),
            "best_of": given.best_of,
            # All of them are in `details.best_of_sequences`.
            "n": given.best_of if given.details else None,
            "logprobs": (given.top_n_tokens or 0) if has_logprobs else None,
            "prompt_logprobs": 0 if given.decoder_input_details else None,
            "structure": _make_structure(given, options.max_schema_bytes),
        },
    )


def _choose_temperature(given: GenerateParameters) -> float:
    """TGI draws tokens if it is told to, or if a field has a meaning for a draw only; otherwise it is greedy."""
    shapes_draw = (
        given.temperature not in (None, 1.0)
        or given.top_k is not None
        or given.top_p not in (None, 1.0)
        or given.typical_p not in (None, 1.0)
    )
    if not given.do_sample and not shapes_draw:
        return 0.0
    return 1.0 if given.temperature is None else given.temperature


def _make_structure(given: GenerateParameters, max_schema_bytes: int) -> Structure | None:
    grammar = given.grammar
    if grammar is None:
        return None
    value = grammar.value
    if grammar.type == "regex":
        if not isinstance(value, str):
            raise InvalidParameterError("parameters.grammar.value", value, "a regular expression as text")
        return make_structure(None, StructuredOutputs.model_validate({"regex": value}), max_schema_bytes)
    if grammar.type == "json_schema" and isinstance(value, dict) and isinstance(value.get("schema"), dict):
        return _make_json_structure(value["schema"], max_schema_bytes)  # a named schema
    return _make_json_structure(value, max_schema_bytes)


def _make_json_structure(schema: object, max_schema_bytes: int) -> Structure | None:
    if isinstance(schema, str):
        return make_structure(None, StructuredOutputs.model_validate({"json": schema}), max_schema_bytes)
    form = {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
    return make_structure(ResponseFormat.model_validate(form), None, max_schema_bytes)
