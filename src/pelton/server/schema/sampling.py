"""Sampling fields of request schemas, made from the fields of `SamplingParams`: each is described once, in core.

Start at `with_sampling_fields`, a class decorator, and `make_sampling_params`. A protocol that spells a field its own
way leaves it out and passes it as an override.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, create_model

from pelton.core.errors import InvalidParameterError
from pelton.core.fields import OptionSpec, get_option_specs
from pelton.core.sampling_params import SamplingParams
from pelton.server.bodies import StopAtFirst

Schema = TypeVar("Schema", bound=BaseModel)
_NUMBER_TYPES = (typing.Optional[int], typing.Optional[float])  # noqa: UP045  # runtime types

# Fields that every protocol spells its own way.
PROTOCOL_FIELDS = ("max_tokens", "stop", "logprobs", "structure", "n", "best_of", "prompt_logprobs")


def _read_bias_keys(value: object) -> object:
    """JSON has no integer keys, so token ids arrive as strings."""
    if not isinstance(value, dict):
        return value
    biases: dict[int, object] = {}
    for key, bias in value.items():
        text = str(key)
        if not text.isascii() or not text.removeprefix("-").isdigit() or len(text) > 20:
            raise ValueError(f"allowed: token ids as keys, not {text[:40]!r}")
        if int(text) in biases:
            raise ValueError(f"allowed: each token id once, not {int(text)} twice")
        biases[int(text)] = bias
    return biases


def with_sampling_fields(*left_out: str) -> Callable[[type[Schema]], type[Schema]]:
    """Add one optional field per field of `SamplingParams`, but `left_out` and `PROTOCOL_FIELDS`, to a schema.

    Fields the class declares itself stay as they are. Null means the default.
    """

    def decorate(schema: type[Schema]) -> type[Schema]:
        hints = typing.get_type_hints(SamplingParams)
        fields: dict[str, object] = {}
        for name, spec in get_option_specs(SamplingParams).items():
            if name in PROTOCOL_FIELDS or name in left_out or name in schema.model_fields:
                continue
            kind = _get_json_type(hints[name])
            fields[name] = (kind, _describe(spec, is_number=kind in _NUMBER_TYPES))
        # Any: create_model takes fields as keywords of no common type.
        made: type[Schema] = create_model(  # type: ignore[call-overload]  # see the line above
            schema.__name__, __base__=schema, __module__=schema.__module__, __doc__=schema.__doc__, **fields
        )
        return made

    return decorate


def make_sampling_params(body: BaseModel, overrides: Mapping[str, object]) -> SamplingParams:
    """The `SamplingParams` of a request: its sampling fields that are not null, and `overrides` that are not None.

    Raises `InvalidParameterError` for a value out of range.
    """
    values = get_sampling_values(body)
    values |= {name: value for name, value in overrides.items() if value is not None}
    # A list would be kept as it is, and its owner could change it.
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    # Any: values come from fields whose types pydantic has checked.
    return SamplingParams(**values)  # type: ignore[arg-type]  # see the line above


def get_sampling_values(body: BaseModel) -> dict[str, object]:
    """The sampling fields of a request that every protocol spells alike, those that are not null."""
    names = {field.name for field in dataclasses.fields(SamplingParams)}
    return {
        name: getattr(body, name)
        for name in type(body).model_fields
        if name in names and name not in PROTOCOL_FIELDS and getattr(body, name) is not None
    }


def check_stop(stop: str | list[str] | None, max_stop_strings: int, name: str = "stop") -> tuple[str, ...]:
    """Stop strings as a tuple; raises `InvalidParameterError` for an empty string or too many of them."""
    strings = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > max_stop_strings:
        raise InvalidParameterError(name, f"{len(strings)} strings", f"at most {max_stop_strings} strings")
    if "" in strings:
        raise InvalidParameterError(name, "", "non-empty strings")
    return strings


def _describe(spec: OptionSpec, *, is_number: bool) -> object:
    bounds: dict[str, Any] = {}  # Any: keywords of Field, which has many types of them
    if not is_number:  # the bounds of a list's elements are checked by SamplingParams
        return Field(None, description=spec.help)
    if spec.minimum is not None:
        bounds["gt" if spec.exclusive_minimum else "ge"] = spec.minimum
    if spec.maximum is not None:
        bounds["le"] = spec.maximum
    return Field(None, description=spec.help, **bounds)


def _get_json_type(hint: object) -> object:
    """The type a field has in JSON, or null."""
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    if hint in (int, float, bool, str):
        return typing.Optional[hint]  # noqa: UP045  # a runtime type
    if typing.get_origin(hint) is tuple:
        # Any: a type made at run time.
        element: Any = typing.get_args(hint)[0]  # see the line above
        return typing.Optional[Annotated[list[element], StopAtFirst()]]  # noqa: UP045  # a runtime type
    if typing.get_origin(hint) is Mapping or typing.get_origin(hint) is types.GenericAlias:
        return typing.Optional[Annotated[dict[int, float], BeforeValidator(_read_bias_keys)]]  # noqa: UP045  # a runtime type
    raise TypeError(f"a sampling field has type {hint}; no JSON form is known for it")
