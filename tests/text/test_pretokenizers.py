"""How text is cut into words, against pieces from the literature and against the `regex` package."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from pelton.core.errors import UnsupportedModelError
from pelton.text.pretokenizers import PRE_TOKENIZERS, build_pre_tokenizer, get_pre_tokenizer

# As published: openai/gpt-2 src/encoder.py, and the tokenizer.json of Llama 3, Qwen2 and Mistral Nemo.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
PUBLISHED: dict[str, tuple[str, ...]] = {
    "gpt-2": (GPT2,),
    "smollm": (r"\p{N}", GPT2),
    "llama-bpe": (LLAMA3,),
    "qwen2": (QWEN2,),
    "tekken": (TEKKEN,),
    "deepseek-v3": DEEPSEEK_V3,
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
}
# Letters of all cases, digits of three scripts, marks, symbols, and the blanks on which both regex engines agree.
ALPHABET = (
    "abzABZ\u00e9\u0130\u01c5\u02b0\u6f22\u3042\u30ab\uac00\u0915\u0301\u0939\u094d"
    "0129\u00bd\u0663\u2167'\"s t.,!?-_/\\$+<=>^~|`()\u2019\u20ac\U0001f980 \t\n\r\u00a0\u2029\u3000"
)


def cut(text: str, patterns: tuple[str, ...]) -> list[str]:
    """Cut with the `regex` package: each pattern in turn, matches and what lies between them."""
    pieces = [text]
    for pattern in patterns:
        pieces = [part for piece in pieces for part in cut_once(piece, regex.compile(pattern))]
    return pieces


def cut_once(text: str, pattern: regex.Pattern[str]) -> Iterator[str]:
    end = 0
    for match in pattern.finditer(text):
        yield from (part for part in (text[end : match.start()], match.group()) if part)
        end = match.end()
    if text[end:]:
        yield text[end:]


def cut_with_pelton(text: str, name: str, byte_alphabet: list[str]) -> list[str]:
    byte_of = {character: byte for byte, character in enumerate(byte_alphabet)}
    words = build_pre_tokenizer(get_pre_tokenizer(name)).pre_tokenize_str(text)
    return [bytes(byte_of[character] for character in word).decode() for word, _ in words]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1234567 \u00bd \u0663\u0664", ["123", "456", "7", " ", "\u00bd", " ", "\u0663\u0664"]),
        ("DON'T  stop\n\n  go", ["DON", "'T", " ", " stop", "\n\n", " ", " go"]),
        ("a\u2029b \u3000c", ["a", "\u2029b", " ", "\u3000c"]),
    ],
)
def test_llama3_pieces_are_those_of_its_published_pattern(
    text: str, expected: list[str], byte_alphabet: list[str]
) -> None:
    assert cut_with_pelton(text, "llama-bpe", byte_alphabet) == expected


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("smollm", "it's 42 x", ["it", "'s", " ", "4", "2", " x"]),
        ("gpt-2", "it's 42 x", ["it", "'s", " 42", " x"]),
        ("qwen2", "it'S 42", ["it", "'S", " ", "4", "2"]),
        ("tekken", "CamelCase/\n x", ["Camel", "Case", "/\n", " x"]),
        ("gpt-4o", "CamelCase's 1234", ["Camel", "Case's", " ", "123", "4"]),
        ("deepseek-llm", "Hi \u6f22\u5b57!\n x  ", ["Hi", " ", "\u6f22\u5b57", "!", "\n", " x", "  "]),
        ("deepseek-coder", "a1 2.\n", ["a", "1", " ", "2", ".", "\n"]),
        ("deepseek-v3", "x=foo(\u6f22a)", ["x", "=foo", "(", "\u6f22", "a", ")"]),
        ("falcon", "a==1234", ["a", "==", "123", "4"]),
        ("default", "a==1234", ["a", "==", "123", "4"]),
        ("starcoder", "v10", ["v", "1", "0"]),
        ("bloom", "Hello, world", ["Hello", ",", " world"]),
    ],
)
def test_pieces_of_a_short_text(name: str, text: str, expected: list[str], byte_alphabet: list[str]) -> None:
    assert cut_with_pelton(text, name, byte_alphabet) == expected


@pytest.mark.parametrize("name", sorted(PUBLISHED))
@settings(max_examples=150, deadline=None)
@given(text=st.text(ALPHABET, max_size=40))
def test_pieces_are_those_of_the_regex_package(name: str, text: str, byte_alphabet: list[str]) -> None:
    assert cut_with_pelton(text, name, byte_alphabet) == cut(text, PUBLISHED[name])


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_keeps_the_text(name: str, byte_alphabet: list[str]) -> None:
    text = f"{ALPHABET} {ALPHABET[::-1]}\n\n  x's 12345   "
    assert "".join(cut_with_pelton(text, name, byte_alphabet)) == text


def test_common_names_exist() -> None:
    required = "smollm gpt-2 llama-bpe qwen2 deepseek-llm deepseek-coder falcon starcoder tekken default"
    assert set(required.split()) <= set(PRE_TOKENIZERS)


def test_only_llama3_and_tekken_kinds_take_whole_words_first() -> None:
    ignoring = {name for name, spec in PRE_TOKENIZERS.items() if spec.ignore_merges}
    assert {"llama-bpe", "llama3", "llama-v3", "tekken"} <= ignoring
    assert ignoring.isdisjoint({"gpt-2", "smollm", "qwen2", "deepseek-v3", "dbrx", "default"})


def test_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        get_pre_tokenizer("nothing")
    assert "'nothing'" in str(caught.value)
    assert all(re.search(rf"\b{re.escape(name)}\b", str(caught.value)) for name in PRE_TOKENIZERS)
