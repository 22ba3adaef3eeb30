"""`ToolStyle`: how a family of models writes tool calls, as data. It must not know parsers; start at the class."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass

_ID_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def make_call_id() -> str:
    """Return an id that no other call has."""
    return "call_" + secrets.token_hex(12)


def make_short_call_id() -> str:
    """Return an id of nine letters and digits, the only form Mistral's templates take (54 random bits)."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(9))


@dataclass(frozen=True, slots=True)
class ToolStyle:
    """Around and between calls, each `{"name": ..., <arguments_key>: {...}}`, blanks being free.

    `marker` begins calls; `close` ends a call, "" if its brace does. `is_list`: after the marker comes a JSON list of
    calls; else `separator`, if not "", may come before a further call without marker. `is_bare`: an answer may begin
    with a call that nothing marks; then its name must be that of a tool. `template_pattern` is found in the chat
    templates of models trained on the style. `is_parallel`: whether a forced answer may hold several calls.
    """

    name: str
    marker: str
    arguments_key: str
    template_pattern: re.Pattern[str]
    close: str = ""
    is_list: bool = False
    separator: str = ""
    is_bare: bool = False
    is_parallel: bool = True
    make_id: Callable[[], str] = make_call_id
