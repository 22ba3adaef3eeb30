"""What `pelton tokenize` shows."""

from __future__ import annotations

import pytest

from pelton.text.describe import compare_texts, describe_tokens
from pelton.text.tokenizer import Tokenizer


def test_each_token_has_id_readable_piece_and_kind(byte_tokenizer: Tokenizer) -> None:
    bos = byte_tokenizer.bos_token_id
    assert describe_tokens(byte_tokenizer, "<s>ab\n\u00e9 ") == [
        (bos, "<s>", True),
        (256, "ab", False),
        (10, "\\n", False),
        (0xC3, "\\xc3", False),
        (0xA9, "\\xa9", False),
        (32, " ", False),
    ]


def test_texts_are_compared_in_tokens_per_character(byte_tokenizer: Tokenizer) -> None:
    rows = compare_texts(byte_tokenizer, {"english": "ab ab", "japanese": "\u6f22\u5b57", "empty": "", "tag": "<s>"})
    assert [(row.name, row.num_characters, row.num_bytes, row.num_tokens) for row in rows] == [
        ("english", 5, 5, 3),
        ("japanese", 2, 6, 6),
        ("empty", 0, 0, 0),
        ("tag", 3, 3, 3),
    ]
    assert [row.tokens_per_character for row in rows] == pytest.approx([0.6, 3.0, 0.0, 1.0])
