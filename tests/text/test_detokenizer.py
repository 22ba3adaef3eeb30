"""Streaming text: no half characters, no lost spaces, and the deltas joined are the decode of the whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.core.errors import InvalidParameterError
from pelton.text.detokenizer import IncrementalDetokenizer
from pelton.text.gguf_vocab import build_gguf_tokenizer
from pelton.text.tokenizer import Tokenizer

Metadata = dict[str, object]
Make = Callable[..., Metadata]
SPACE = "\u2581"


def stream(tokenizer: Tokenizer, ids: list[int], prompt: tuple[int, ...] = (), step: int = 1) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt)
    deltas = [detokenizer.push(ids[start : start + step]) for start in range(0, len(ids), step)]
    return [*deltas, detokenizer.flush()]


@pytest.fixture(scope="module")
def sentencepiece(make_sentencepiece: Make) -> Tokenizer:
    pieces = {f"{SPACE}{SPACE}{SPACE}{SPACE}": -1.0, f"{SPACE}a": -2.0, ".": -3.0, "a": -4.0, SPACE: -5.0, "b": -6.0}
    return build_gguf_tokenizer(make_sentencepiece(pieces))


def test_character_of_several_tokens_comes_whole(byte_tokenizer: Tokenizer) -> None:
    text = "A\U0001f980\u6f22\u00e9"
    ids = list(text.encode())  # one token for each byte: 41 f0 9f a6 80 e6 bc a2 c3 a9
    assert len(ids) == 10
    deltas = stream(byte_tokenizer, ids)
    assert deltas == ["A", "", "", "", "\U0001f980", "", "", "\u6f22", "", "\u00e9", ""]


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=40), step=st.integers(1, 5))
def test_deltas_of_any_bytes_join_to_the_decode_of_the_whole(byte_tokenizer: Tokenizer, data: bytes, step: int) -> None:
    ids = list(data)
    assert (
        "".join(stream(byte_tokenizer, ids, step=step)) == byte_tokenizer.decode(ids) == data.decode(errors="replace")
    )


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_valid_text_never_shows_a_replacement_character_early(byte_tokenizer: Tokenizer, text: str) -> None:
    deltas = stream(byte_tokenizer, list(text.encode()))
    assert sum(delta.count("\ufffd") for delta in deltas) == text.count("\ufffd")


def test_replacement_character_comes_as_soon_as_it_is_certain(byte_tokenizer: Tokenizer) -> None:
    assert stream(byte_tokenizer, [0xC3, ord("a")]) == ["", "\ufffda", ""]
    assert stream(byte_tokenizer, [ord("a"), 0xF0, 0x9F]) == ["a", "", "", "\ufffd"]


def test_special_tokens_add_nothing(byte_tokenizer: Tokenizer) -> None:
    eos = byte_tokenizer.eos_token_id
    assert eos is not None
    assert stream(byte_tokenizer, [0xC3, eos, 0xA9, eos]) == ["", "", "\u00e9", "", ""]


def test_spaces_before_punctuation_arrive(sentencepiece: Tokenizer) -> None:
    spaces, dot = 259, 261
    assert [sentencepiece.piece(spaces), sentencepiece.piece(dot)] == ["    ", "."]
    prompt = tuple(sentencepiece.encode("a"))
    assert stream(sentencepiece, [spaces, dot], prompt) == ["    ", ".", ""]
    # At the start of a text the first space is the one that encoding added.
    assert stream(sentencepiece, [spaces, dot]) == ["   ", ".", ""]
    assert sentencepiece.decode([spaces, dot]) == "   ."


@pytest.mark.parametrize("prompt", [(), (1,)])
def test_leading_space_is_dropped_at_the_start_of_a_text_only(
    sentencepiece: Tokenizer, prompt: tuple[int, ...]
) -> None:
    ids = sentencepiece.encode("a a", add_special=False)
    assert "".join(stream(sentencepiece, ids, prompt)) == "a a"
    assert "".join(stream(sentencepiece, ids, (*prompt, *ids))) == " a a"


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 264), max_size=30), step=st.integers(1, 4))
def test_deltas_of_any_sentencepiece_ids_join_to_the_decode(
    sentencepiece: Tokenizer, ids: list[int], step: int
) -> None:
    assert "".join(stream(sentencepiece, ids, step=step)) == sentencepiece.decode(ids)


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=20), border=st.integers(0, 20))
def test_output_completes_a_character_the_prompt_began(byte_tokenizer: Tokenizer, data: bytes, border: int) -> None:
    text = data.decode(errors="replace").encode()
    prompt, output = text[:border], text[border:]
    deltas = "".join(stream(byte_tokenizer, list(output), tuple(prompt)))
    assert prompt.decode(errors="ignore") + deltas == text.decode()


def test_work_for_a_token_does_not_grow_with_the_text(byte_tokenizer: Tokenizer) -> None:
    looked_up: Counter[int] = Counter()

    class CountingTokenizer:
        strips_leading_space = False

        def token_bytes(self, token_id: int) -> bytes:
            looked_up[token_id] += 1
            return byte_tokenizer.token_bytes(token_id)

    detokenizer = IncrementalDetokenizer(CountingTokenizer(), [97] * 100_000)  # type: ignore[arg-type]
    assert looked_up.total() <= 4
    for _ in range(1000):
        detokenizer.push([97])
    assert looked_up.total() <= 1004


def test_id_outside_the_vocabulary_is_an_error(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidParameterError, match="token id is 300"):
        IncrementalDetokenizer(byte_tokenizer).push([300])
