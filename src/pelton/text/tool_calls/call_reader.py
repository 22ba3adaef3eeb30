"""`CallReader`: one call, {"name": ..., "arguments": {...}}, read by characters; arguments go out as they come.

It must not know what stands around a call. Its only class is the entry point.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from pelton.text.tool_calls.json_scanner import JsonScanner

_ARGUMENT_KEYS = ("arguments", "parameters")
NO_ARGUMENTS = "{}"


class CallReader:
    """Reads the object of one call.

    `names`: if given, the call must be of one of these, and must have arguments: for objects that nothing marks as a
    call. Arguments may also be a text that holds the object, as some models write them, or null.

    Attributes: `name` once it is known; `is_done` when the object is closed and is a call.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        self.name: str | None = None
        self.is_done = False
        self._names = names
        self._scanner = JsonScanner()
        self._value: list[str] = []  # the value of `name`, or of arguments that are no object
        self._ready: list[str] = []  # arguments that may go out
        self._is_object = False
        self._has_arguments = False

    def push(self, character: str) -> bool:
        """Take the next character; return whether this can still be a call."""
        scanner = self._scanner
        was_inside = scanner.is_in_value
        if not scanner.push(character):
            return False
        is_inside = scanner.is_in_value
        if is_inside and not was_inside and not self._begin_value(character):
            return False
        if (is_inside or was_inside) and not self._take(character, is_last=not is_inside):
            return False
        if scanner.is_done:
            self.is_done = self._finish()
            return self.is_done
        return True

    def take_arguments(self) -> str | None:
        """Return the arguments that have come since the last call; None until name and arguments have begun."""
        if self.name is None or not self._has_arguments or (not self._ready and not self._is_object):
            return None
        ready, self._ready = "".join(self._ready), []
        return ready

    def _begin_value(self, character: str) -> bool:
        key = self._scanner.key
        self._value = []
        if key == "name":
            return character == '"' and self.name is None
        if key in _ARGUMENT_KEYS:
            is_first, self._has_arguments, self._is_object = not self._has_arguments, True, character == "{"
            return is_first and character in '{"n'
        return True

    def _take(self, character: str, *, is_last: bool) -> bool:
        key = self._scanner.key
        if key in _ARGUMENT_KEYS and self._is_object:
            self._ready.append(character)
            return True
        if key != "name" and key not in _ARGUMENT_KEYS:
            return True
        self._value.append(character)
        if not is_last:
            return True
        value = json.loads("".join(self._value))
        if key == "name":
            self.name = value
            return bool(value) and _is_unicode(value) and (self._names is None or value in self._names)
        arguments = NO_ARGUMENTS if value is None else value.strip()
        self._ready.append(arguments)
        return _is_unicode(arguments) and _is_object(arguments)

    def _finish(self) -> bool:
        if self.name is None or (self._names is not None and not self._has_arguments):
            return False
        if not self._has_arguments:
            self._has_arguments = True
            self._ready.append(NO_ARGUMENTS)
        return True


def _is_object(text: str) -> bool:
    scanner = JsonScanner()
    return all(not scanner.is_done and scanner.push(character) for character in text) and scanner.is_done


def _is_unicode(text: str) -> bool:
    # An escape may stand for half a surrogate pair, which no client could be sent.
    return not any("\ud800" <= character <= "\udfff" for character in text)
