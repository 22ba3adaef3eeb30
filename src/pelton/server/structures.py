"""From the fields that ask for structured output to a `Structure`. Start at `make_structure`."""

from __future__ import annotations

import json

from pelton.core.errors import InvalidParameterError, MalformedRequestError, StructureError
from pelton.core.structure import Structure
from pelton.server.errors import rename_parameter
from pelton.server.schema.structure import ResponseFormat, StructuredOutputs


def make_structure(
    response_format: ResponseFormat | None, outputs: StructuredOutputs | None, max_schema_bytes: int
) -> Structure | None:
    """The structure two fields ask for, None for neither.

    Raises `MalformedRequestError` for both, `StructureError` for what is no schema or pattern at all, and
    `InvalidParameterError` for a schema larger than `max_schema_bytes`.
    """
    try:
        return _make_structure(response_format, outputs, max_schema_bytes)
    except StructureError as error:
        raise rename_parameter(error, get_structure_names(outputs)) from error


def _make_structure(
    response_format: ResponseFormat | None, outputs: StructuredOutputs | None, max_schema_bytes: int
) -> Structure | None:
    wanted = None if response_format is None else _read_response_format(response_format)
    if outputs is not None:
        if wanted is not None:
            raise MalformedRequestError(
                "structured_outputs and response_format both ask for a structure; allowed: one of them",
                "structured_outputs",
                "invalid_value",
            )
        wanted = _read_structured_outputs(outputs)
    if wanted is not None:
        num_bytes = wanted.num_bytes
        if num_bytes > max_schema_bytes:
            raise InvalidParameterError(
                get_structure_names(outputs)["structure"], num_bytes, f"at most {max_schema_bytes} bytes", "size"
            )
    return wanted


def get_structure_names(outputs: StructuredOutputs | None) -> dict[str, str]:
    """What errors of the engine name of a structure, and what the request calls it; the longer names come first."""
    if outputs is None:
        return {"structure": "response_format"}
    return {
        "structure.json_schema": "structured_outputs.json",
        "structure.lark": "structured_outputs.grammar",
        "structure": "structured_outputs",
    }


def _read_response_format(response_format: ResponseFormat) -> Structure | None:
    if response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return Structure("json_object")
    schema = response_format.json_schema
    if schema is None or schema.schema_ is None:
        raise MalformedRequestError(
            "response_format.json_schema.schema is missing",
            "response_format.json_schema.schema",
            "missing_required_parameter",
        )
    return Structure("json_schema", json.dumps(schema.schema_))


def _read_structured_outputs(outputs: StructuredOutputs) -> Structure:
    given = [name for name in type(outputs).model_fields if getattr(outputs, name) is not None]
    if len(given) != 1:
        raise MalformedRequestError(
            f"structured_outputs has {len(given)} kinds of structure; allowed: exactly one of json, json_object, "
            "regex, choice, grammar",
            "structured_outputs",
            "invalid_value",
        )
    if outputs.json_ is not None:
        schema = outputs.json_ if isinstance(outputs.json_, str) else json.dumps(outputs.json_)
        return Structure("json_schema", schema)
    if outputs.regex is not None:
        return Structure("regex", outputs.regex)
    if outputs.choice is not None:
        return Structure("choice", tuple(outputs.choice))
    if outputs.grammar is not None:
        return Structure("lark", outputs.grammar)
    return Structure("json_object")
