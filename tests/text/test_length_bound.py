"""Least numbers of tokens: by hand, and never above what tokenising gives."""

from __future__ import annotations

import random
import string
import threading

import pytest

from pelton.text.gguf_vocab import build_gguf_tokenizer
from pelton.text.length_bound import LengthBound
from pelton.text.tokenizer import Vocabulary

ASCII = [bytes([byte]) for byte in range(128)]


def test_bound_is_the_number_of_letters_over_the_most_a_token_holds() -> None:
    bound = LengthBound([*ASCII, b"abcd", b"<|x|>", b"----------"])
    assert bound.count_least_tokens(b"q" * 10) == 3
    assert bound.count_least_tokens(b"1" * 10) == 10
    assert bound.count_least_tokens(b"=" * 25) == 3
    assert bound.count_least_tokens(b" " * 100) == 0
    assert bound.count_least_tokens(b"") == 0


def test_characters_that_may_be_composed_or_unknown_count_for_nothing() -> None:
    bound = LengthBound(ASCII)
    assert bound.count_least_tokens("e\u0301".encode() * 10) == 0
    assert bound.count_least_tokens(b"e" * 30 + "\u0301".encode()) == 28
    assert LengthBound([*ASCII[:-6], b"abcd"]).count_least_tokens(b"q" * 100) == 0


def test_bound_is_never_above_the_tokens_of_the_text(make_byte_level) -> None:
    tokenizer = build_gguf_tokenizer(make_byte_level(["a b", "ab ab", "= =", "1 2", "abab ="]))
    rng = random.Random(5)
    for _ in range(300):
        text = "".join(rng.choices(["a", "b", "ab", "=", "12", " ", "é", "<s>", "\n"], k=rng.randrange(60)))
        assert tokenizer.count_least_tokens(text) <= len(tokenizer.encode(text, add_special=False))


@pytest.mark.parametrize("kind", ["make_byte_level", "make_sentencepiece"])
def test_spellings_have_the_letters_of_the_bytes_and_need_none_of_them(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    pieces = ["a b", "ab ab", "= ="] if kind == "make_byte_level" else {"\u2581ab": -1.0, "abab=": -2.0}
    tokenizer = build_gguf_tokenizer(request.getfixturevalue(kind)(pieces))
    visible = string.ascii_letters + string.digits + string.punctuation
    vocabulary = tokenizer._vocabulary
    for token_id, spelling in enumerate(vocabulary.list_spellings()):
        data = vocabulary.compute_bytes(token_id) or vocabulary.texts[token_id].encode()
        assert [byte for byte in spelling if chr(byte) in visible] == [byte for byte in data if chr(byte) in visible]
    # Which takes a tenth of a second for the 49,152 tokens of SmolLM2, in the way of everything else.
    monkeypatch.setattr(Vocabulary, "compute_bytes", lambda *_: pytest.fail("the bytes of a token were computed"))
    assert tokenizer.count_least_tokens("ab" * 100) >= 0


def test_long_texts_take_another_way_to_the_same_ids(make_byte_level) -> None:
    tokenizer = build_gguf_tokenizer(make_byte_level(["a b", "ab ab", "h e"]))
    piece = "ababhe <s> x\n"
    assert tokenizer.encode(piece * 1000, add_special=False) == tokenizer.encode(piece, add_special=False) * 1000


@pytest.mark.model
def test_bound_of_a_long_text_is_above_the_context(smollm2_tokenizer) -> None:
    for text in ("q" * 1_000_000, "=" * 900_000, "c2VjcmV0" * 125_000):
        assert smollm2_tokenizer.count_least_tokens(text) > 8192


@pytest.mark.model
def test_long_text_is_tokenised_beside_other_threads(smollm2_tokenizer) -> None:
    num_turns = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal num_turns
        while not done.wait(0.001):
            num_turns += 1

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        # A busy machine may give the watcher no turn for a while; a tokenizer that keeps the interpreter never does.
        for _ in range(50):
            before = num_turns
            smollm2_tokenizer.encode("The sea is deep. " * 30_000)
            if num_turns - before >= 10:
                return
    finally:
        done.set()
        watcher.join()
    pytest.fail("no other thread had a turn")
