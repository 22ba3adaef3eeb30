"""The tokenizer as llguidance wants it: the bytes of every token, end tokens, and an encoder for forced text.

No `transformers`, no file: it works for whatever vocabulary `text/` has read. Special tokens never stand for their
spelling, so no text of an output can produce one; a grammar may name one by its id, `<[5]>`.
It must not know grammars. Entry point: `build_vocabulary`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from pelton.core.errors import StructureError

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# llguidance (toktrie) marks a special token by this byte, which never occurs in UTF-8.
_SPECIAL_MARK = b"\xff"
# Added tokens that a file marks as ordinary text, though they are markers: <|...|> and those around calls and thoughts.
_MARKER = re.compile(r"<\|[^<>]*\|>|</?(?:tool_call|tool_response|think)>|\[/?[A-Z_]{3,}\]")
_LINE_BREAK = b"\n"


class TokenSource(Protocol):
    """What is needed of a `Tokenizer`."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def eos_token_ids(self) -> Collection[int]: ...
    def token_bytes(self, token_id: int) -> bytes: ...
    def piece(self, token_id: int) -> str: ...
    def is_special(self, token_id: int) -> bool: ...
    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...


class _TokenizerWrapper:
    """The attributes llguidance reads of a tokenizer written in Python; the names are its own."""

    def __init__(self, source: TokenSource) -> None:
        self.is_tokenizer_wrapper = True
        self.eos_token_id = min(source.eos_token_ids)
        self.bos_token_id = None
        self.special_token_ids: list[int] = []
        self.tokens = [_get_bytes(source, token_id) for token_id in range(source.vocab_size)]
        self._source = source
        self._ids = {data: token_id for token_id, data in reversed(list(enumerate(self.tokens))) if data}
        self._max_bytes = max(map(len, self.tokens))

    def __call__(self, data: bytes | str) -> list[int]:
        """Return ids whose bytes are exactly `data`: the tokenizer's own way to write it where there is one."""
        data = data.encode() if isinstance(data, str) else data
        for prefix in (b"", _LINE_BREAK):  # after a line break no tokenizer adds a space of its own
            ids = self._encode_after(prefix, data)
            if ids is not None:
                return ids
        return self._encode_greedily(data)

    def _encode_after(self, prefix: bytes, data: bytes) -> list[int] | None:
        try:
            text = (prefix + data).decode()
        except UnicodeDecodeError:
            return None
        ids = self._source.encode(text, add_special=False, parse_special=False)
        rest = b"".join(self.tokens[token_id] for token_id in ids)
        for start, token_id in enumerate(ids):
            if rest == data:
                return ids[start:]
            rest = rest[len(self.tokens[token_id]) :]
        return None if data else []

    def _encode_greedily(self, data: bytes) -> list[int]:
        ids, start = [], 0
        while start < len(data):
            stop = min(len(data), start + self._max_bytes)
            while stop > start and data[start:stop] not in self._ids:
                stop -= 1
            if stop == start:
                break  # a byte without a token: llguidance goes on from what there is
            ids.append(self._ids[data[start:stop]])
            start = stop
        return ids


def build_vocabulary(source: TokenSource) -> LLTokenizer:
    """Return the vocabulary of a tokenizer; a quarter of a second for 49,000 tokens.

    Raises `StructureError` for a tokenizer without end tokens: nothing could end a structure.
    """
    from llguidance import LLTokenizer

    if not source.eos_token_ids:
        raise StructureError("structure", "asked of a model without end tokens", "models that name an end token")
    # llguidance only asks for the attributes, but its annotation names its own class.
    wrapper: object = _TokenizerWrapper(source)
    return LLTokenizer(wrapper, n_vocab=source.vocab_size, eos_token=sorted(source.eos_token_ids))  # type: ignore[arg-type]  # see above


def _get_bytes(source: TokenSource, token_id: int) -> bytes:
    piece = source.piece(token_id)
    if token_id in source.eos_token_ids or source.is_special(token_id) or _MARKER.fullmatch(piece):
        return _SPECIAL_MARK + piece.encode()
    data = source.token_bytes(token_id)
    # No UTF-8 text has such a byte, and llguidance would take the token for a special one.
    return b"" if _SPECIAL_MARK in data else data
