"""SentencePiece-style vocabularies from GGUF metadata, against merging by score done by hand and done naively."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.core.errors import ModelFileError
from pelton.text.gguf_vocab import build_gguf_tokenizer, derive_merges
from pelton.text.tokenizer import Tokenizer

Metadata = dict[str, object]
Make = Callable[..., Metadata]
SPACE = "\u2581"
FIRST_PIECE = 259
PIECES = {
    f"{SPACE}t": -1.0,
    "er": -2.0,
    "in": -3.0,
    f"{SPACE}a": -4.0,
    "en": -5.0,
    f"{SPACE}the": -6.0,
    "he": -7.0,
    "ing": -8.0,
    f"{SPACE}{SPACE}": -9.0,
    SPACE: -10.0,
    **{character: -11.0 - i for i, character in enumerate("etainrhg")},
}


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.piece(token_id) for token_id in tokenizer.encode(text, add_special=False)]


def merge_naively(text: str, scores: dict[str, float]) -> list[str]:
    """Join the neighbours whose joined text has the best score, leftmost first, until none can be joined."""
    symbols = list(text)
    while True:
        candidates = [
            (-scores[symbols[i] + symbols[i + 1]], i)
            for i in range(len(symbols) - 1)
            if symbols[i] + symbols[i + 1] in scores
        ]
        if not candidates:
            return symbols
        _, i = min(candidates)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


def test_merges_follow_the_score_of_the_joined_token(make_sentencepiece: Make) -> None:
    tokenizer = build_gguf_tokenizer(make_sentencepiece(PIECES))
    # " the": the best pair is space+t, then h+e, then the two together.
    assert pieces(tokenizer, "the") == [" the"]
    # "here": h+e (-7) comes after e+r (-2), which takes the e away; the rest cannot be joined.
    assert pieces(tokenizer, "here") == [" ", "h", "er", "e"]
    assert pieces(tokenizer, "tainting") == [" t", "a", "in", "t", "ing"]


def test_every_way_to_split_a_token_is_a_merge_in_order_of_scores() -> None:
    texts, kinds = ["a", "b", "ab", "ba", "aba", "<s>"], [1, 1, 1, 1, 1, 3]
    merges = derive_merges(texts, kinds, [-5.0, -6.0, -2.0, -1.0, -3.0, 0.0])
    assert merges == [("b", "a"), ("a", "b"), ("a", "ba"), ("ab", "a")]


@settings(max_examples=300, deadline=None)
@given(text=st.text("etainrhg ", min_size=1, max_size=40))
def test_ids_are_those_of_naive_merging_by_score(make_sentencepiece: Make, text: str) -> None:
    tokenizer = build_gguf_tokenizer(make_sentencepiece(PIECES))
    expected = merge_naively(SPACE + text.replace(" ", SPACE), PIECES)
    ids = tokenizer.encode(text, add_special=False)
    assert [list(PIECES)[token_id - FIRST_PIECE] for token_id in ids] == expected


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters=SPACE), max_size=40))
@pytest.mark.parametrize("adds_space", [True, False])
def test_decoding_gives_back_any_text_through_byte_tokens(
    make_sentencepiece: Make, text: str, adds_space: bool
) -> None:
    tokenizer = build_gguf_tokenizer(make_sentencepiece(PIECES, add_space_prefix=adds_space))
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    assert tokenizer.decode(ids) == text
    assert b"".join(map(tokenizer.token_bytes, ids)) == (" " + text if adds_space and text else text).encode()


def test_space_comes_before_a_text_and_after_each_special_token(make_sentencepiece: Make) -> None:
    tokenizer = build_gguf_tokenizer(make_sentencepiece(PIECES))
    assert pieces(tokenizer, "a</s>a") == [" a", "</s>", " a"]
    assert pieces(tokenizer, " a") == [" ", " a"]  # space+a has a better score than two spaces
    assert tokenizer.decode(tokenizer.encode(" a")) == " a"
    without = build_gguf_tokenizer(make_sentencepiece(PIECES, add_space_prefix=False))
    assert pieces(without, "a</s>a") == ["a", "</s>", "a"]
    assert without.decode(without.encode(" a")) == " a"


def test_bos_is_added_by_default_and_eos_is_not(make_sentencepiece: Make) -> None:
    tokenizer = build_gguf_tokenizer(make_sentencepiece(PIECES))
    assert (tokenizer.add_bos, tokenizer.add_eos) == (True, False)
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("a")[0] == 1
    assert not build_gguf_tokenizer(make_sentencepiece(PIECES, add_bos_token=False)).add_bos


def test_ids_that_the_file_does_not_name_are_0_1_and_2(make_sentencepiece: Make) -> None:
    metadata = make_sentencepiece(PIECES)
    for name in ("bos_token_id", "eos_token_id", "unknown_token_id", "token_type"):
        del metadata[f"tokenizer.ggml.{name}"]
    tokenizer = build_gguf_tokenizer(metadata)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.eos_token_ids) == (1, 2, {2})
    assert tokenizer.decode(tokenizer.encode("the \u6f22")) == "the \u6f22"
    assert tokenizer.is_special(0)


def test_text_never_becomes_a_control_or_byte_token(make_sentencepiece: Make) -> None:
    spelled = {character: -30.0 - i for i, character in enumerate("<s>0xA/")}
    tokenizer = build_gguf_tokenizer(make_sentencepiece(PIECES | spelled))
    for text in ("<s>", "</s>", "<0x0A>"):
        ids = tokenizer.encode(text, add_special=False, parse_special=False)
        assert tokenizer.decode(ids) == text
        assert min(ids) >= FIRST_PIECE
    assert tokenizer.encode("\n", add_special=False)[-1] == 3 + 0x0A


def test_unknown_character_is_the_unknown_token_without_byte_tokens() -> None:
    metadata: Metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", SPACE, "a"],
        "tokenizer.ggml.scores": [0.0, 0.0, 0.0, -1.0, -2.0],
        "tokenizer.ggml.token_type": [2, 3, 3, 1, 1],
    }
    assert build_gguf_tokenizer(metadata).encode("ab") == [1, 3, 4, 0]


def test_user_defined_token_is_found_before_merging(make_sentencepiece: Make) -> None:
    tokenizer = build_gguf_tokenizer(make_sentencepiece(PIECES, special=[("<think>", 4)]))
    assert pieces(tokenizer, "the<think>the") == [" the", "<think>", " the"]


def test_long_run_is_encoded_exactly(make_sentencepiece: Make) -> None:
    tokenizer = build_gguf_tokenizer(make_sentencepiece(PIECES | {"tt": -0.5}))
    for text in ("t" * 50_000, " " * 50_000, "\u6f22" * 20_000):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("scores", None, "scores is missing"),
        ("scores", [1.0], "scores has 1 entries"),
        ("scores", "x", "scores is 'x'"),
        ("scores", [float("nan")] * 277, r"scores\[0\] is nan"),
        ("token_type", [6] * 277, r"tokens\[0\] is '<unk>'; a byte token must be <0xNN>"),
        ("tokens", [*map(str, range(276)), "x" * 2000], r"tokens\[276\] has 2000 characters"),
        ("unknown_token_id", 277, "unknown_token_id is 277"),
        ("add_space_prefix", "yes", "add_space_prefix is 'yes'"),
    ],
)
def test_broken_metadata_names_the_key(make_sentencepiece: Make, key: str, value: object, message: str) -> None:
    metadata = make_sentencepiece(PIECES)
    if key == "tokens":
        del metadata["tokenizer.ggml.token_type"]
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    else:
        metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(ModelFileError, match=message):
        build_gguf_tokenizer(metadata)
