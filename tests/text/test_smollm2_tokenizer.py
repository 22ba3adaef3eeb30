"""The default model's tokenizer against llama.cpp's ids (tests/goldens/make_tokenizer_goldens.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pelton.core.errors import InvalidParameterError
from pelton.text.detokenizer import IncrementalDetokenizer
from pelton.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "goldens" / "tokenizer_smollm2.json"
ROWS: list[tuple[str, list[int]]] = json.loads(GOLDEN.read_text(encoding="utf-8"))

pytestmark = pytest.mark.model


def test_ids_are_those_of_llama_cpp(smollm2_tokenizer: Tokenizer) -> None:
    for text, ids in ROWS:
        assert smollm2_tokenizer.encode(text) == ids, text


def test_decoding_gives_back_every_text(smollm2_tokenizer: Tokenizer) -> None:
    for text, ids in ROWS:
        assert smollm2_tokenizer.decode(ids, skip_special=False) == text
        detokenizer = IncrementalDetokenizer(smollm2_tokenizer)
        deltas = [detokenizer.push([token_id]) for token_id in ids]
        assert "".join(deltas) + detokenizer.flush() == smollm2_tokenizer.decode(ids)


def test_turns_end_with_im_end_or_endoftext(smollm2_tokenizer: Tokenizer) -> None:
    assert smollm2_tokenizer.eos_token_ids == {0, 2}
    assert (smollm2_tokenizer.add_bos, smollm2_tokenizer.add_eos) == (False, False)
    assert smollm2_tokenizer.vocab_size == 49152


def test_character_without_tokens_is_refused_and_not_dropped(smollm2_tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidParameterError, match=r"U\+0004 at 1"):
        smollm2_tokenizer.encode("a\x04b")
