"""Every error class has a status, and every status an entry that says what is meant."""

from __future__ import annotations

import pytest

from pelton.core import errors
from pelton.server.errors import (
    MAX_MESSAGE_CHARACTERS,
    STATUS_TABLE,
    describe_error,
    make_openai_body,
)


def list_error_classes() -> list[type[Exception]]:
    return [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, errors.PeltonError)]


@pytest.mark.parametrize("cls", list_error_classes(), ids=lambda cls: cls.__name__)
def test_every_error_class_has_a_line_of_its_own(cls: type[Exception]) -> None:
    assert cls in STATUS_TABLE


def test_the_table_holds_error_classes_only() -> None:
    assert set(STATUS_TABLE) <= set(list_error_classes())
    assert all(400 <= status < 600 for status, _, _ in STATUS_TABLE.values())


@pytest.mark.parametrize(
    ("error", "status", "code", "parameter"),
    [
        (errors.InvalidParameterError("top_p", 2, "0 to 1"), 400, "invalid_value", "top_p"),
        (errors.ContextLengthError("prompt", 9, "8"), 400, "context_length_exceeded", "prompt"),
        (errors.ModelNotFoundError("no"), 404, "model_not_found", None),
        (errors.AuthenticationError("no"), 401, "invalid_api_key", None),
        (errors.RateLimitError("no", 3.0), 429, "rate_limit_exceeded", None),
        (errors.RequestTooLargeError("no"), 413, "request_too_large", None),
        (errors.EngineDeadError("no"), 503, "engine_dead", None),
        (errors.MalformedRequestError("no", "x", "unknown_parameter"), 400, "unknown_parameter", "x"),
    ],
)
def test_errors_become_what_clients_expect(error: Exception, status: int, code: str, parameter: str | None) -> None:
    info = describe_error(error)
    assert (info.status, info.code, info.parameter) == (status, code, parameter)


def test_a_bug_says_no_more_than_its_class() -> None:
    info = describe_error(KeyError("/home/user/secret"))
    assert (info.status, info.message) == (500, "internal error: KeyError")


def test_a_message_never_repeats_a_whole_prompt() -> None:
    info = describe_error(errors.InvalidParameterError("prompt", "x" * 10**6, "less"))
    assert len(info.message) < MAX_MESSAGE_CHARACTERS + 100
    assert info.message.endswith("allowed: less")


def test_openai_body_has_all_four_fields() -> None:
    body = make_openai_body(describe_error(errors.AuthenticationError("no key")))
    assert body == {
        "error": {"message": "no key", "type": "authentication_error", "param": None, "code": "invalid_api_key"}
    }
