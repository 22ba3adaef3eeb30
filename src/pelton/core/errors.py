"""The one tree of errors. Each is meant to be shown to a person as a single line.

    PeltonError
    ├── InvalidParameterError   a value outside its range (also a ValueError)
    │   ├── ContextLengthError  a request that cannot fit the model's context
    │   └── StructureError      a schema, pattern or grammar that cannot be compiled or has become too complex
    ├── ConfigError             an environment variable or option this machine cannot honour
    ├── ModelNotFoundError      no model under that name or path
    ├── DownloadError           a source that could not be reached or a file that arrived wrong
    ├── ModelFileError          a model file that is damaged, truncated or hostile
    ├── UnsupportedModelError   a sound file that Pelton does not implement
    ├── ChatTemplateError       a chat template that failed, or exceeded its limits
    ├── SamplingError           logits from which no token can be drawn
    ├── EngineBusyError         an engine for one caller at a time was called while it was working
    ├── EngineOverloadedError   the queue is full; says when to try again
    ├── CacheFileError          a saved prefix cache that is damaged, hostile or of another model
    ├── EngineDeadError         the engine can no longer run requests
    └── ServerError             a request that a server refuses or ends
        ├── MalformedRequestError   a body that is not what the endpoint takes
        ├── AuthenticationError     no API key, or an unknown one
        ├── ForbiddenOriginError    a web page of another origin
        ├── RateLimitError          a caller that used its allowance of requests or tokens up
        ├── RequestTooLargeError    a body longer than allowed
        ├── BodyTimeoutError        a body that stopped arriving
        ├── ServerClosingError      the server is shutting down
        ├── RequestTimeoutError     a request that ran longer than the server allows
        └── GenerationError         a request that failed in the engine while others went on

A message names the input, the value found and what is allowed. Anything that is not a PeltonError is a bug.
"""

from __future__ import annotations

from typing import TypeVar

ParameterError = TypeVar("ParameterError", bound="InvalidParameterError")


class PeltonError(Exception):
    """Base of every error a user can cause or must be told about; its text is one clear line."""


class InvalidParameterError(PeltonError, ValueError):
    """A parameter has a value outside what is allowed.

    `parameter` names the field so that a command line or an HTTP layer can point at it. `measure` is what of it has
    the value: "number of tokens".
    """

    def __init__(self, parameter: str, value: object, allowed: str, measure: str = "") -> None:
        subject = f"{measure} of {parameter}" if measure else parameter
        super().__init__(f"{subject} is {value!r}; allowed: {allowed}")
        self.parameter = parameter
        self.value = value
        self.allowed = allowed
        self.measure = measure

    def rename(self: ParameterError, parameter: str) -> ParameterError:
        """The same error about a field of another name."""
        return type(self)(parameter, self.value, self.allowed, self.measure)


class ContextLengthError(InvalidParameterError):
    """Prompt (and requested output) exceed the context length of the model."""


class StructureError(InvalidParameterError):
    """A schema, pattern, choice or grammar is wrong, not supported, too large, or allows no text at all.

    `parameter` names the place inside it, such as `structure.json_schema.properties.age.pattern`.
    """


class ConfigError(PeltonError):
    """An environment variable or engine option asks for something this machine or build cannot do."""


class ModelNotFoundError(PeltonError):
    """No model is known under the given name, or nothing exists at the given path."""


class DownloadError(PeltonError):
    """A download source could not be reached, or what it delivered is not what was expected."""


class ModelFileError(PeltonError):
    """A model file is damaged, truncated or inconsistent; names the tensor or key at fault."""


class UnsupportedModelError(PeltonError):
    """A sound model file needs something Pelton does not implement; lists what is implemented."""


class ChatTemplateError(PeltonError):
    """A chat template raised an error, tried something forbidden or exceeded its limits."""


class SamplingError(PeltonError):
    """The model gave logits from which no token can be drawn: all are NaN or minus infinity.

    `rows` are the row numbers at fault; sampling is repeatable, so the other rows can be sampled again without them.
    """

    def __init__(self, message: str, rows: tuple[int, ...]) -> None:
        super().__init__(message)
        self.rows = rows


class EngineBusyError(PeltonError):
    """The engine serves one caller at a time, and another call (or an open stream) has not ended."""


class EngineOverloadedError(PeltonError):
    """The queue is full. `retry_after_s` estimates, from measured rates, when there will be room again."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CacheFileError(PeltonError):
    """A saved prefix cache is damaged, hostile, of another version or of another model; nothing of it is used."""


class EngineDeadError(PeltonError):
    """The engine stopped because of an internal failure and cannot run further requests."""


class ServerError(PeltonError):
    """A server refuses or ends a request, and says why."""


class MalformedRequestError(ServerError):
    """A body that is not JSON, or not the JSON the endpoint takes; `parameter` names the field if one is at fault."""

    def __init__(self, message: str, parameter: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.code = code


class AuthenticationError(ServerError):
    """The request has no API key, or one the server does not know."""


class ForbiddenOriginError(ServerError):
    """A web page of an origin that is not allowed sent the request."""


class RateLimitError(ServerError):
    """The caller used its allowance up; it may come again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestTooLargeError(ServerError):
    """The body of the request is longer than the server takes."""


class BodyTimeoutError(ServerError):
    """The body of a request stopped arriving."""


class ServerClosingError(ServerError):
    """The server is shutting down and takes no new requests."""


class RequestTimeoutError(ServerError):
    """The request ran longer than the server allows."""


class GenerationError(ServerError):
    """The request failed in the engine; other requests are not concerned."""
