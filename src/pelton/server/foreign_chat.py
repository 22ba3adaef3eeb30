"""Other chat protocols become a `ChatCompletionRequest`, so that tools, structures and parsers are one thing for all.

Entry points: `make_chat_request` and `make_foreign_ask`; errors call a field what its protocol calls it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pydantic import BaseModel

from pelton.core.errors import ContextLengthError, InvalidParameterError, MalformedRequestError
from pelton.server.bodies import validate_body
from pelton.server.chat_request import make_chat_ask
from pelton.server.generation import Ask
from pelton.server.options import ServerOptions
from pelton.server.schema.chat import ChatCompletionRequest
from pelton.server.schema.sampling import get_sampling_values


def make_chat_request(body: BaseModel, values: Mapping[str, object], names: Mapping[str, str]) -> ChatCompletionRequest:
    """A chat request of `values` that are not None and the sampling fields of `body`.

    `names` says what fields of it are called in the other protocol. Raises `MalformedRequestError`.
    """
    fields = {**get_sampling_values(body), **{name: value for name, value in values.items() if value is not None}}
    with renamed_errors(names):
        return validate_body(fields, ChatCompletionRequest)


def make_foreign_ask(body: ChatCompletionRequest, options: ServerOptions, names: Mapping[str, str]) -> Ask:
    """`make_chat_ask` for a request that `make_chat_request` made with the same `names`."""
    with renamed_errors(names):
        ask = make_chat_ask(body, options)
    return dataclasses.replace(ask, field_names={**ask.field_names, **names})


@contextmanager
def renamed_errors(names: Mapping[str, str]) -> Iterator[None]:
    """Errors that name a field of `names`, or something inside it, name its value there instead."""
    try:
        yield
    except MalformedRequestError as error:
        parameter = error.parameter or ""
        renamed = rename_field(parameter, names)
        if renamed == parameter:
            raise
        message = str(error)
        if message.startswith(parameter):
            message = renamed + message[len(parameter) :]
        raise MalformedRequestError(message, renamed, error.code) from error
    except InvalidParameterError as error:
        renamed = rename_field(error.parameter, names)
        if renamed == error.parameter or type(error) not in (InvalidParameterError, ContextLengthError):
            raise
        raise error.rename(renamed) from error


def rename_field(parameter: str, names: Mapping[str, str]) -> str:
    """`stop[0]` with {"stop": "stop_sequences"} is `stop_sequences[0]`."""
    for name, renamed in names.items():
        rest = parameter[len(name) :]
        if parameter.startswith(name) and (not rest or rest[0] in ".["):
            return renamed + rest
    return parameter
