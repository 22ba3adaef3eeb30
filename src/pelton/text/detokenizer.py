"""`IncrementalDetokenizer`: token ids come one by one, text goes out in deltas that are never half a character.

The deltas of a text joined together are exactly `Tokenizer.decode` of all its ids. The time for a token does not
depend on how much text came before. It must not know stop strings or requests; its only class is the entry point.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from pelton.text.tokenizer import Tokenizer

_MAX_PARTIAL_BYTES = 3  # the longest beginning of a UTF-8 character


class IncrementalDetokenizer:
    """Turns the output ids of one request into text deltas; special tokens add nothing.

    `prompt_token_ids` are what the output continues: after a prompt with text, a leading space of the output belongs
    to the text and is kept, and a character begun by the prompt's last bytes is completed. U+FFFD stands for bytes
    that can no longer become a character.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Iterable[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        tail = _get_text_tail(tokenizer, prompt_token_ids)
        self._is_at_start = tokenizer.strips_leading_space and not tail
        # Decoding the tail leaves in the decoder just the bytes of a character that is not complete yet.
        self._decoder.decode(tail)

    def push(self, token_ids: Iterable[int]) -> str:
        """Return the text that the next `token_ids` complete; "" while a character is incomplete.

        Raises `InvalidParameterError` for an id outside the vocabulary.
        """
        data = b"".join(map(self._tokenizer.token_bytes, token_ids))
        if data and self._is_at_start:
            self._is_at_start = False
            data = data.removeprefix(b" ")
        return self._decoder.decode(data)

    def flush(self) -> str:
        """Return what is left at the end: U+FFFD for an incomplete character, else ""."""
        return self._decoder.decode(b"", final=True)


def _get_text_tail(tokenizer: Tokenizer, token_ids: Iterable[int]) -> bytes:
    """Return the last bytes of the text of `token_ids`: b"" only if there is no text."""
    tail = b""
    for token_id in reversed(list(token_ids)):
        tail = tokenizer.token_bytes(token_id) + tail
        if len(tail) > _MAX_PARTIAL_BYTES:
            break
    return tail
