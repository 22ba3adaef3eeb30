"""`JsonScanner`: checks one JSON object character by character, and tells where the values of its own keys lie.

A finite automaton with a stack of brackets, after RFC 8259; it never goes back. It must not know what the object means.
"""

from __future__ import annotations

import json
import re

MAX_DEPTH = 200

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LITERALS = ("true", "false", "null")
_SPACE = " \t\r\n"
_ESCAPES = '"\\/bfnrt'
_HEX = "0123456789abcdefABCDEF"
_NUMBER_CHARACTERS = "0123456789+-.eE"


class JsonScanner:
    """Takes the characters of one object, from its opening brace on.

    Attributes, valid after each `push`: `is_done` (the object is closed), `key` (the object's key whose value comes or
    is being read), `is_in_value` (the character was inside a value of the object itself, or began one; after the last
    character of a text, list or object it is false again).
    """

    def __init__(self) -> None:
        self.is_done = False
        self.key = ""
        self._stack: list[str] = []
        self._state = "value"
        self._is_key = False
        self._text: list[str] = []  # of the key, number or literal being read
        self._num_hex_left = 0

    @property
    def is_in_value(self) -> bool:
        """Whether a value of the object itself is open."""
        if len(self._stack) != 1:
            return len(self._stack) > 1
        return self._state in ("number", "literal") or (self._state in ("text", "escape", "hex") and not self._is_key)

    def push(self, character: str) -> bool:
        """Take the next character; return whether this can still become a valid object. Not to be called once done."""
        if self._state == "number":
            if character in _NUMBER_CHARACTERS:
                self._text.append(character)
                return True
            if not _NUMBER.fullmatch("".join(self._text)):
                return False
            self._state = "next"
        if self._state in ("text", "escape", "hex"):
            return self._push_text(character)
        if self._state == "literal":
            return self._push_literal(character)
        if character in _SPACE:
            return bool(self._stack)
        if self._state == "colon":
            self._state = "value"
            return character == ":"
        if self._state == "next":
            return self._push_next(character)
        if self._state in ("key", "key or end"):
            if character == "}" and self._state == "key or end":
                return self._close("{")
            return self._begin_text(is_key=True) if character == '"' else False
        if self._state == "value or end" and character == "]":
            return self._close("[")
        return self._begin_value(character)

    def _begin_value(self, character: str) -> bool:
        if not self._stack and character != "{":
            return False
        if character in "{[":
            self._stack.append(character)
            self._state = "key or end" if character == "{" else "value or end"
            return len(self._stack) <= MAX_DEPTH
        if character == '"':
            return self._begin_text(is_key=False)
        self._text = [character]
        if character in "-0123456789":
            self._state = "number"
            return True
        self._state = "literal"
        return character in "tfn"

    def _begin_text(self, *, is_key: bool) -> bool:
        self._state, self._is_key, self._text = "text", is_key, []
        return True

    def _push_text(self, character: str) -> bool:
        if self._is_key and len(self._stack) == 1:
            self._text.append(character)
        if self._state == "escape":
            self._state, self._num_hex_left = ("hex", 4) if character == "u" else ("text", 0)
            return character == "u" or character in _ESCAPES
        if self._state == "hex":
            self._num_hex_left -= 1
            self._state = "hex" if self._num_hex_left else "text"
            return character in _HEX
        if character == "\\":
            self._state = "escape"
        elif character == '"':
            self._state = "colon" if self._is_key else "next"
            if self._is_key and len(self._stack) == 1:
                self.key = json.loads('"' + "".join(self._text))
        return character >= " "

    def _push_literal(self, character: str) -> bool:
        self._text.append(character)
        text = "".join(self._text)
        if text in _LITERALS:
            self._state = "next"
            return True
        return any(literal.startswith(text) for literal in _LITERALS)

    def _push_next(self, character: str) -> bool:
        if character == ",":
            self._state = "key" if self._stack[-1] == "{" else "value"
            return True
        return self._close("{" if character == "}" else "[") if character in "}]" else False

    def _close(self, bracket: str) -> bool:
        if self._stack.pop() != bracket:
            return False
        self._state = "next"
        self.is_done = not self._stack
        return True
