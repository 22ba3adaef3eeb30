"""Byte-level vocabularies from GGUF metadata: merging, special tokens, round trips, broken metadata."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.core.errors import InvalidParameterError, ModelFileError, UnsupportedModelError
from pelton.text.gguf_vocab import build_gguf_tokenizer
from pelton.text.tokenizer import Tokenizer

Metadata = dict[str, object]
Make = Callable[..., Metadata]


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.piece(token_id) for token_id in tokenizer.encode(text, add_special=False)]


def test_merges_apply_in_their_order_and_not_from_left_to_right(make_byte_level: Make) -> None:
    tokenizer = build_gguf_tokenizer(make_byte_level(["b c", "a b", "bc d"]))
    # "abcd": b+c is the first merge although a+b stands further left; then bc+d; a+b has nothing left to join.
    assert pieces(tokenizer, "abcd") == ["a", "bcd"]
    assert pieces(tokenizer, "abab") == ["ab", "ab"]


@pytest.mark.parametrize(("pre", "expected"), [("llama-bpe", ["cat"]), ("tekken", ["cat"]), ("gpt-2", ["ca", "t"])])
def test_whole_word_is_looked_up_first_only_with_ignore_merges(
    make_byte_level: Make, pre: str, expected: list[str]
) -> None:
    metadata = make_byte_level(["c a"], special=(), tokens=["c", "a", "t", "cat"], pre=pre)
    assert pieces(build_gguf_tokenizer(metadata), "cat") == expected


def test_default_cuts_text_when_the_file_names_no_pre_tokenizer(make_byte_level: Make) -> None:
    metadata = make_byte_level(["1 2", "12 3", "123 4"])
    del metadata["tokenizer.ggml.pre"]
    # `default` cuts digits into threes, gpt-2 does not.
    assert pieces(build_gguf_tokenizer(metadata), "1234") == ["123", "4"]
    assert pieces(build_gguf_tokenizer({**metadata, "tokenizer.ggml.pre": "gpt-2"}), "1234") == ["1234"]


def test_unknown_pre_tokenizer_is_named_with_those_that_exist(make_byte_level: Make) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'brand-new'.*deepseek-llm.*smollm.*tekken"):
        build_gguf_tokenizer(make_byte_level(pre="brand-new"))


def test_unknown_tokenizer_model_is_named_with_those_that_exist(make_byte_level: Make) -> None:
    with pytest.raises(UnsupportedModelError, match=r"'bert'.*gpt2, llama"):
        build_gguf_tokenizer(make_byte_level(model="bert"))


def test_special_tokens_are_parsed_or_taken_as_text(make_byte_level: Make) -> None:
    tokenizer = build_gguf_tokenizer(make_byte_level(special=("<s>", "<|im_end|>")))
    end = tokenizer.eos_token_id
    assert tokenizer.encode("a<|im_end|>b") == [ord("a"), end, ord("b")]
    as_text = tokenizer.encode("a<|im_end|>b", parse_special=False)
    assert end not in as_text
    assert tokenizer.decode(as_text) == "a<|im_end|>b"
    assert tokenizer.decode([ord("a"), end, ord("b")]) == "ab"
    assert tokenizer.decode([ord("a"), end, ord("b")], skip_special=False) == "a<|im_end|>b"
    assert tokenizer.token_bytes(end) == b""
    assert tokenizer.is_special(end)
    assert tokenizer.piece(end) == "<|im_end|>"


def test_user_defined_tokens_are_parsed_always_and_show_in_text(make_byte_level: Make) -> None:
    tokenizer = build_gguf_tokenizer(make_byte_level(special=("<s>", "<think>", "</s>"), kinds=[3, 4, 3]))
    for parse_special in (True, False):
        ids = tokenizer.encode("a<think>b", parse_special=parse_special)
        assert [tokenizer.piece(token_id) for token_id in ids] == ["a", "<think>", "b"]
        assert tokenizer.decode(ids) == "a<think>b"


def test_bos_and_eos_are_added_as_the_file_says(make_byte_level: Make) -> None:
    plain = build_gguf_tokenizer(make_byte_level())
    both = build_gguf_tokenizer(make_byte_level(add_bos_token=True, add_eos_token=True))
    bos, eos = both.bos_token_id, both.eos_token_id
    assert (plain.add_bos, plain.add_eos, both.add_bos, both.add_eos) == (False, False, True, True)
    assert plain.encode("a") == [ord("a")]
    assert both.encode("a") == [bos, ord("a"), eos]
    assert both.encode("") == [bos, eos]
    assert both.encode("a", add_special=False) == [ord("a")]
    assert (both.bos_token, both.eos_token) == ("<s>", "</s>")


def test_bos_written_in_a_text_is_not_doubled(make_byte_level: Make) -> None:
    tokenizer = build_gguf_tokenizer(make_byte_level(add_bos_token=True))
    assert tokenizer.encode("<s>a") == [tokenizer.bos_token_id, ord("a")]


def test_llama_bpe_adds_bos_unless_the_file_says_otherwise(make_byte_level: Make) -> None:
    assert build_gguf_tokenizer(make_byte_level(pre="llama-bpe")).add_bos
    assert not build_gguf_tokenizer(make_byte_level(pre="llama-bpe", add_bos_token=False)).add_bos


def test_all_end_tokens_of_the_file_and_those_known_by_name_end_a_generation(make_byte_level: Make) -> None:
    special = ("<s>", "<|eot_id|>", "<|eom_id|>", "<mine>", "<|endoftext|>", "<|im_end|>", "</s>")
    metadata = make_byte_level(special=special, kinds=[3, 3, 3, 3, 3, 4, 3])
    texts = metadata["tokenizer.ggml.tokens"]
    assert isinstance(texts, list)
    metadata["tokenizer.ggml.eot_token_id"] = texts.index("<mine>")
    ends = build_gguf_tokenizer(metadata).eos_token_ids
    assert ends == {texts.index(text) for text in special[1:]}


def test_ordinary_token_that_looks_like_an_end_token_does_not_end_a_generation(make_byte_level: Make) -> None:
    metadata = make_byte_level(special=("<s>", "</s>", "<|end|>", "<|return|>", "<end>"), kinds=[3, 1, 3, 3, 3])
    tokenizer = build_gguf_tokenizer(metadata)
    ends = {tokenizer.piece(token_id) for token_id in tokenizer.eos_token_ids}
    # </s> is strike-through here, <|end|> a separator because there is <|return|>.
    assert ends == {"<|return|>", "<end>"}


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_decoding_gives_back_any_text(byte_tokenizer: Tokenizer, text: str) -> None:
    ids = byte_tokenizer.encode(text, parse_special=False)
    assert byte_tokenizer.decode(ids) == text
    assert b"".join(map(byte_tokenizer.token_bytes, ids)) == text.encode()


@pytest.mark.parametrize("text", ["a , b . c ? 'd' ...", " ...", "  two  spaces ", " n't 's ' x ' !"])
def test_spaces_before_punctuation_are_kept(byte_tokenizer: Tokenizer, text: str) -> None:
    assert byte_tokenizer.decode(byte_tokenizer.encode(text)) == text


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2", "tekken", "deepseek-v3", "deepseek-llm", "default"])
@pytest.mark.parametrize("unit", ["q", "-", "=", " ", "\n", "A", "\u6f22"])
def test_long_run_without_a_border_is_encoded_exactly(make_byte_level: Make, pre: str, unit: str) -> None:
    tokenizer = build_gguf_tokenizer(make_byte_level(["q q", "= =", "- -", "qq qq"], pre=pre))
    half, whole = unit * 20_000, unit * 40_000
    ids = tokenizer.encode(whole, add_special=False)
    assert tokenizer.decode(ids) == whole
    assert abs(len(ids) - 2 * len(tokenizer.encode(half, add_special=False))) <= 4


@pytest.mark.parametrize("unit", ["q", "-", "=", "7"])
def test_time_grows_with_the_length_of_a_run_and_not_with_its_square(make_byte_level: Make, unit: str) -> None:
    """8 times the length in less than 24 times the processor time (the square is 64); 900,000 overflow nothing."""
    tokenizer = build_gguf_tokenizer(make_byte_level(["q q", "= =", "- -", "qq qq", "7 7"], pre="llama-bpe"))

    def measure(text: str) -> float:
        start = time.process_time()
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text
        return time.process_time() - start

    short = min(measure(unit * 25_000) for _ in range(3))
    assert min(measure(unit * 200_000) for _ in range(3)) < 24 * short
    measure(unit * 900_000)


def test_very_long_word_is_encoded_exactly(byte_tokenizer: Tokenizer) -> None:
    word = "".join(random.Random(7).choices(string.ascii_letters + string.digits + "+/", k=200_000))
    assert byte_tokenizer.decode(byte_tokenizer.encode(word)) == word


def test_character_the_vocabulary_cannot_express_is_refused(make_byte_level: Make, byte_alphabet: list[str]) -> None:
    tokens = [character for byte, character in enumerate(byte_alphabet) if byte != 4]
    tokenizer = build_gguf_tokenizer(make_byte_level(["a b"], tokens=tokens))
    assert tokenizer.decode(tokenizer.encode("ab\x05")) == "ab\x05"
    with pytest.raises(InvalidParameterError, match=r"U\+0004 at 2"):
        tokenizer.encode("ab\x04c")


def test_text_that_is_no_unicode_is_refused(byte_tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidParameterError, match="surrogate at character 1"):
        byte_tokenizer.encode("a\ud800")
    with pytest.raises(InvalidParameterError, match="text is 'bytes'"):
        byte_tokenizer.encode(b"a")  # type: ignore[arg-type]


@pytest.mark.parametrize("token_id", [-1, 259, 10**12])
def test_id_outside_the_vocabulary_is_refused(byte_tokenizer: Tokenizer, token_id: int) -> None:
    for use in (byte_tokenizer.token_bytes, byte_tokenizer.piece, byte_tokenizer.is_special):
        with pytest.raises(InvalidParameterError, match="0 to 258"):
            use(token_id)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", None, "model is missing"),
        ("model", 3, "model is 3; it must be a string"),
        ("tokens", None, "tokens is missing"),
        ("tokens", [], "tokens is .*at least one"),
        ("tokens", ["a", 3], "tokens is .*list of strings"),
        ("tokens", ["a", "b", "a", *map(str, range(256))], "'a' twice, as ids 0 and 2"),
        ("merges", None, "merges is missing"),
        ("merges", ["ab"], r"merges\[0\] is 'ab'"),
        ("merges", ["a b c"], r"merges\[0\] is 'a b c'"),
        ("merges", ["a missing"], "merges do not fit the vocabulary"),
        ("token_type", [1, 3], "token_type has 2 entries; it must have 259"),
        ("token_type", [9] * 259, r"token_type\[0\] is 9; allowed: integers 0 to 6"),
        ("token_type", "none", "token_type is 'none'"),
        ("bos_token_id", 259, "bos_token_id is 259; allowed: token ids 0 to 258"),
        ("eos_token_id", -1, "eos_token_id is -1"),
        ("eot_token_id", 1.5, "eot_token_id is 1.5"),
        ("eom_token_id", True, "eom_token_id is True"),
        ("add_bos_token", 1, "add_bos_token is 1; it must be a boolean"),
        ("pre", ["smollm"], "pre is .*must be a string"),
    ],
)
def test_broken_metadata_is_an_error_that_names_the_key(
    make_byte_level: Make, key: str, value: object, message: str
) -> None:
    metadata = make_byte_level()
    if value is None:
        del metadata[f"tokenizer.ggml.{key}"]
    else:
        metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(ModelFileError, match=message):
        build_gguf_tokenizer(metadata)


def test_adding_a_bos_that_is_not_there_is_an_error(make_byte_level: Make) -> None:
    with pytest.raises(ModelFileError, match=r"add_bos_token is true, but .*bos_token_id is missing"):
        build_gguf_tokenizer(make_byte_level(special=(), add_bos_token=True))
    assert not build_gguf_tokenizer(make_byte_level(special=(), pre="llama-bpe")).add_bos
