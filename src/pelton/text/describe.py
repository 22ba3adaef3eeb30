"""What `pelton tokenize` shows: the tokens of a text one by one, and how texts compare in tokens per character.

It must not know terminals or tables. Start at `describe_tokens`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pelton.text.tokenizer import Tokenizer


class TokenDescription(NamedTuple):
    """One token: its id, its text for people (see `Tokenizer.piece`), whether it is a control token."""

    token_id: int
    piece: str
    is_special: bool


@dataclass(frozen=True, slots=True)
class TextComparison:
    """What a text costs: Unicode characters, UTF-8 bytes, tokens (without BOS and EOS) and tokens per character."""

    name: str
    num_characters: int
    num_bytes: int
    num_tokens: int

    @property
    def tokens_per_character(self) -> float:
        """Tokens per character; 0 for an empty text."""
        return self.num_tokens / self.num_characters if self.num_characters else 0.0

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes per token; 0 for an empty text."""
        return self.num_bytes / self.num_tokens if self.num_tokens else 0.0


def describe_tokens(tokenizer: Tokenizer, text: str, *, add_special: bool = True) -> list[TokenDescription]:
    """Return the tokens of `text` in order, with those the tokenizer adds unless `add_special` is off.

    Raises `InvalidParameterError` as `Tokenizer.encode` does.
    """
    return [
        TokenDescription(token_id, tokenizer.piece(token_id), tokenizer.is_special(token_id))
        for token_id in tokenizer.encode(text, add_special=add_special)
    ]


def measure_text(tokenizer: Tokenizer, name: str, text: str) -> TextComparison:
    """Return what `text` costs; special tokens spelled in it count as plain text.

    Raises `InvalidParameterError` as `Tokenizer.encode` does.
    """
    num_tokens = len(tokenizer.encode(text, add_special=False, parse_special=False))
    return TextComparison(name, len(text), len(text.encode()), num_tokens)


def compare_texts(tokenizer: Tokenizer, texts: Mapping[str, str]) -> list[TextComparison]:
    """Return what each named text costs, in the given order; see `measure_text`."""
    return [measure_text(tokenizer, name, text) for name, text in texts.items()]
