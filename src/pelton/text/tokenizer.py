"""`Tokenizer`: text to token ids and back, whatever file the vocabulary came from.

It wraps objects of the `tokenizers` package for encoding and turns ids back into bytes itself, so that decoding all
ids at once and one by one (detokenizer.py) can never differ. It must not know file formats, models or requests.
Start at `Tokenizer`; `gguf_vocab.build_gguf_tokenizer` and `tokenizer_json.load_tokenizer_json` make one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from pelton.core.errors import InvalidParameterError
from pelton.text.length_bound import LengthBound

SPACE_MARK = "\u2581"  # SentencePiece writes a space as this character (U+2581)
# Control tokens that are part of an answer: readers of tool calls and of reasoning look for them in the text.
SHOWN_CONTROL_TOKENS = frozenset(
    ("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "<think>", "</think>", "[THINK]", "[/THINK]")
)
_MIN_BATCH_LENGTH = 4096  # characters
_WHITESPACE_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


class TokenKind(IntEnum):
    """What a token is; the numbers are those of `tokenizer.ggml.token_type` in GGUF files."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Encoding(Protocol):
    """The one thing taken from what a `TextEncoder` returns."""

    @property
    def ids(self) -> list[int]: ...


class TextEncoder(Protocol):
    """The part of `tokenizers.Tokenizer` used here."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Encoding: ...

    def encode_batch_fast(self, input: Sequence[str], *, add_special_tokens: bool) -> Sequence[Encoding]: ...


def _build_byte_alphabet() -> dict[str, int]:
    """Return the GPT-2 alphabet: one printable character per byte.

    Printable Latin-1 characters stand for themselves and the 68 other bytes, in order, for U+0100, U+0101 and so on
    (openai/gpt-2, src/encoder.py, `bytes_to_unicode`).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if chr(byte) not in alphabet)
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_ALPHABET = _build_byte_alphabet()


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens by id: `texts[id]` as stored in the file, `kinds[id]`, and how a text stands for bytes.

    `is_byte_level`: each character of a normal token is one byte of the GPT-2 alphabet. Otherwise U+2581 is a space
    and a `BYTE` token `<0xNN>` is that byte.
    """

    texts: Sequence[str]
    kinds: Sequence[int]
    is_byte_level: bool

    def compute_bytes(self, token_id: int) -> bytes:
        """Return the bytes the token adds to a text: none for control, unknown and unused tokens.

        The control tokens that mark tool calls and reasoning do show: they are part of the answer.
        """
        kind, text = self.kinds[token_id], self.texts[token_id]
        if kind == TokenKind.CONTROL and text in SHOWN_CONTROL_TOKENS:
            return text.encode()
        if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.UNUSED):
            return b""
        if kind == TokenKind.USER_DEFINED:
            return text.encode()
        if self.is_byte_level:
            try:
                return bytes([BYTE_ALPHABET[character] for character in text])
            except KeyError:  # a token stored as plain text, such as an added one marked normal
                return text.encode()
        if kind == TokenKind.BYTE:
            return bytes([int(text[3:5], 16)])
        return text.replace(SPACE_MARK, " ").encode()

    def list_spellings(self) -> list[bytes]:
        """What stands for each token in a text, control tokens included: exact only for letters, digits and marks.

        Those are stored as they are in every vocabulary, so that this takes a tenth of the time of `compute_bytes`.
        """
        if self.is_byte_level or TokenKind.BYTE not in self.kinds:
            return [text.encode() for text in self.texts]
        spellings = zip(self.kinds, self.texts, strict=True)
        return [bytes([int(t[3:5], 16)]) if kind == TokenKind.BYTE else t.encode() for kind, t in spellings]


@dataclass(frozen=True, slots=True)
class TextRules:
    """What a tokenizer adds around a text and where a generation ends.

    `prefix_token_ids` and `suffix_token_ids` are added by `encode(add_special=True)`; `eos_token_ids` are all tokens
    after which the model has nothing more to say; `strips_leading_space` says that encoding puts a space before a
    text, so that decoding drops one at its start. `keeps_characters`: encoding drops no ASCII letter, digit or mark.
    """

    bos_token_id: int | None = None
    eos_token_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()
    prefix_token_ids: tuple[int, ...] = ()
    suffix_token_ids: tuple[int, ...] = ()
    strips_leading_space: bool = False
    keeps_characters: bool = True


class Tokenizer:
    """Text to token ids and back. Safe to share between threads.

    `encoder` recognises special tokens written in a text, `plain_encoder` treats their spelling as ordinary text.
    """

    def __init__(
        self, vocabulary: Vocabulary, encoder: TextEncoder, plain_encoder: TextEncoder, rules: TextRules
    ) -> None:
        self.vocab_size = len(vocabulary.texts)
        self.bos_token_id = rules.bos_token_id
        self.eos_token_id = rules.eos_token_id
        self.eos_token_ids = rules.eos_token_ids
        self.add_bos = rules.bos_token_id is not None and rules.bos_token_id in rules.prefix_token_ids
        self.add_eos = rules.eos_token_id is not None and rules.eos_token_id in rules.suffix_token_ids
        self.strips_leading_space = rules.strips_leading_space
        self._rules = rules
        self._vocabulary = vocabulary
        self._encoder = encoder
        self._plain_encoder = plain_encoder
        self._bytes_by_id: dict[int, bytes] = {}
        self._length_bound: LengthBound | None = None
        self._missing_bytes = _find_missing_bytes(vocabulary) if vocabulary.is_byte_level else frozenset()

    @property
    def bos_token(self) -> str:
        """Text of the beginning-of-sequence token, "" if there is none."""
        return "" if self.bos_token_id is None else self._vocabulary.texts[self.bos_token_id]

    @property
    def eos_token(self) -> str:
        """Text of the main end-of-sequence token, "" if there is none."""
        return "" if self.eos_token_id is None else self._vocabulary.texts[self.eos_token_id]

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Return the token ids of `text`.

        `add_special` adds BOS and EOS where the model wants them, unless the text already begins (ends) with them;
        `parse_special` turns special tokens spelled out in the text into their ids, otherwise they are plain text.
        Raises `InvalidParameterError` if the text is no valid Unicode or has characters the vocabulary cannot express.
        """
        if not isinstance(text, str):
            raise InvalidParameterError("text", type(text).__name__, "a string")
        encoder = self._encoder if parse_special else self._plain_encoder
        try:
            utf8 = text.encode()
        except UnicodeEncodeError as error:
            raise InvalidParameterError(
                "text", f"a lone surrogate at character {error.start}", "text that can be written as UTF-8"
            ) from error
        ids = _encode_text(encoder, text)
        if not self._missing_bytes.isdisjoint(utf8):
            self._check_nothing_lost(utf8, ids)
        return self._add_affixes(ids) if add_special else ids

    def count_least_tokens(self, text: str) -> int:
        """Tokens that `encode(text, add_special=False)` gives at least; quick. 0 where that cannot be told."""
        if not self._rules.keeps_characters:
            return 0
        if self._length_bound is None:
            self._length_bound = LengthBound(self._vocabulary.list_spellings())
        return self._length_bound.count_least_tokens(text.encode("utf-8", "replace"))

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of `ids`; bytes that are no valid UTF-8 become U+FFFD, spaces are kept as they are.

        With `skip_special=False` control tokens show as their text. Raises `InvalidParameterError` for an id outside
        the vocabulary.
        """
        data = b"".join(self._get_visible_bytes(token_id, skip_special) for token_id in ids)
        if self.strips_leading_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return the raw bytes the token adds to a text; b"" for unknown, unused and hidden control tokens."""
        data = self._bytes_by_id.get(token_id)
        if data is None:
            self._check_id(token_id)
            data = self._bytes_by_id[token_id] = self._vocabulary.compute_bytes(token_id)
        return data

    def piece(self, token_id: int) -> str:
        """Return the token for people: its text, with `\\n`, `\\t`, `\\r` and bytes as `\\xNN` where not printable."""
        self._check_id(token_id)
        data = self.token_bytes(token_id)
        if not data:
            return self._vocabulary.texts[token_id]
        text = data.decode("utf-8", "backslashreplace")
        return "".join(map(_show_character, text))

    def find_token(self, text: str) -> int | None:
        """Return the id of the one token that stands for `text` when special tokens are parsed, None if several do."""
        ids = self.encode(text, add_special=False)
        return ids[0] if len(ids) == 1 else None

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a control or unknown token; of these only `SHOWN_CONTROL_TOKENS` show in a text."""
        self._check_id(token_id)
        return self._vocabulary.kinds[token_id] in (TokenKind.CONTROL, TokenKind.UNKNOWN)

    def _check_id(self, token_id: int) -> None:
        if not 0 <= token_id < self.vocab_size:
            raise InvalidParameterError("token id", token_id, f"0 to {self.vocab_size - 1}")

    def _get_visible_bytes(self, token_id: int, skip_special: bool) -> bytes:
        if not skip_special and self.is_special(token_id):
            return self._vocabulary.texts[token_id].encode()
        return self.token_bytes(token_id)

    def _add_affixes(self, ids: list[int]) -> list[int]:
        prefix, suffix = list(self._rules.prefix_token_ids), list(self._rules.suffix_token_ids)
        if prefix and ids[: len(prefix)] != prefix:
            ids = prefix + ids
        if suffix and ids[-len(suffix) :] != suffix:
            ids = ids + suffix
        return ids

    def _check_nothing_lost(self, utf8: bytes, ids: list[int]) -> None:
        # BPE drops a byte it has no token for without a word; a prompt must not change in silence.
        num_bytes = sum(len(self._get_visible_bytes(token_id, skip_special=False)) for token_id in ids)
        if num_bytes == len(utf8):
            return
        text = utf8.decode()
        lost = next(c for c in text if not self._missing_bytes.isdisjoint(c.encode()))
        raise InvalidParameterError(
            "text",
            f"character U+{ord(lost):04X} at {text.index(lost)}",
            "characters whose UTF-8 bytes are all in the model's vocabulary",
        )


def _encode_text(encoder: TextEncoder, text: str) -> list[int]:
    # Long texts as a batch of one: that releases the GIL, for which all other threads would wait seconds for a
    # megabyte, and skips offsets. For short ones it costs more than it gains.
    if len(text) < _MIN_BATCH_LENGTH:
        return encoder.encode(text, add_special_tokens=False).ids
    return encoder.encode_batch_fast([text], add_special_tokens=False)[0].ids


def encode_chat(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a rendered chat template: special tokens are parsed and none is added twice.

    The result begins with exactly one BOS if the template printed one or the tokenizer adds one, else with none.
    """
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    bos = tokenizer.bos_token_id
    if bos is None:
        return ids
    num_leading = next((i for i, token_id in enumerate(ids) if token_id != bos), len(ids))
    return [bos, *ids[num_leading:]] if num_leading or tokenizer.add_bos else ids


def _find_missing_bytes(vocabulary: Vocabulary) -> frozenset[int]:
    """Bytes that occur in UTF-8 and have no token of their own in a byte-level vocabulary."""
    present = {BYTE_ALPHABET[text] for text in vocabulary.texts if text in BYTE_ALPHABET}
    never_in_utf8 = {0xC0, 0xC1, *range(0xF5, 0x100)}
    return frozenset(range(256)) - present - never_in_utf8


def _show_character(character: str) -> str:
    if character.isprintable():
        return character
    escaped = _WHITESPACE_ESCAPES.get(character)
    return escaped or "".join(f"\\x{byte:02x}" for byte in character.encode())
