"""API keys: where they are read from and whom they let in."""

from __future__ import annotations

from pathlib import Path

import pytest

from pelton.core.errors import InvalidParameterError
from pelton.server.auth import ANONYMOUS, ApiKeys


def test_without_keys_everybody_is_anonymous() -> None:
    keys = ApiKeys.load(None, None)
    assert keys.is_open
    assert keys.find_caller({}).name == ANONYMOUS


def test_keys_come_from_file_and_variable_together(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# team\nalice:secret-of-alice\n\nsecret-without-name\n")
    keys = ApiKeys.load(str(path), "bob:secret-of-bob, another-secret")
    assert keys.find_caller({"authorization": "Bearer secret-of-alice"}).name == "alice"
    assert keys.find_caller({"authorization": "bearer secret-of-bob"}).name == "bob"
    assert keys.find_caller({"x-api-key": "another-secret"}).name.startswith("key-")
    assert keys.find_caller({"x-api-key": "secret-without-name"}) is not None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong-secret"},
        {"authorization": "Basic secret-of-alice"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer alice:secret-of-alice"},
        {"x-api-key": ""},
        {"x-api-key": "é" * 10},
    ],
)
def test_other_headers_let_nobody_in(headers: dict[str, str]) -> None:
    assert ApiKeys.from_lines(["alice:secret-of-alice"]).find_caller(headers) is None


@pytest.mark.parametrize("lines", [["short"], ["has a blank"], ["ünicode-key"], ["same-secret", "x:same-secret"]])
def test_bad_keys_are_refused_without_showing_them(lines: list[str]) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        ApiKeys.from_lines(lines)
    assert lines[0] not in str(caught.value)


def test_key_files_without_a_key_or_missing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("# nothing\n")
    for path in (tmp_path / "empty", tmp_path / "missing"):
        with pytest.raises(InvalidParameterError, match="api_key_file"):
            ApiKeys.load(str(path), None)


def test_names_of_callers_do_not_hold_the_key() -> None:
    keys = ApiKeys.from_lines(["a-secret-key"])
    assert "a-secret-key" not in repr(keys)
    assert "secret" not in keys.find_caller({"x-api-key": "a-secret-key"}).name
