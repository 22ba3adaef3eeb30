"""Vocabularies to compile structures for, and a walk through a constraint by scripted or random logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from pelton.core.structure import Structure
from pelton.core.token_constraint import TokenConstraint
from pelton.structure.compiler import StructureCompiler
from pelton.text.gguf_vocab import build_gguf_tokenizer
from pelton.text.tokenizer import BYTE_ALPHABET, Tokenizer

WORDS = ["true", "false", "null", '":', '",', "},", '{"', '"}', "ab", "abc", "  ", "\n\n", '"name', "12", "é", "🦀"]


def to_alphabet(text: str) -> str:
    """The text as a byte-level vocabulary stores it."""
    characters = {byte: character for character, byte in BYTE_ALPHABET.items()}
    return "".join(characters[byte] for byte in text.encode())


def make_byte_level() -> Tokenizer:
    """256 bytes, some longer tokens, and control tokens; two of them end."""
    texts = [*sorted(BYTE_ALPHABET, key=BYTE_ALPHABET.__getitem__), *map(to_alphabet, WORDS)]
    num_normal = len(texts)
    texts += ["<s>", "</s>", "<|im_end|>", "<|python_tag|>", "<tool_call>", "</tool_call>"]
    return build_gguf_tokenizer(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": texts,
            "tokenizer.ggml.token_type": np.array([1] * num_normal + [3, 3, 3, 3, 4, 4], np.int32),
            "tokenizer.ggml.merges": ["a b"],
            "tokenizer.ggml.bos_token_id": num_normal,
            "tokenizer.ggml.eos_token_id": num_normal + 1,
        }
    )


def make_sentencepiece() -> Tokenizer:
    """<unk> <s> </s>, 256 byte tokens, every printable ASCII character and some pieces."""
    pieces = [f"\u2581{word}" for word in ("a", "ab", "{", '"', ":")] + ["\u2581", *map(chr, range(0x21, 0x7F)), "ab"]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return build_gguf_tokenizer(
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": texts,
            "tokenizer.ggml.scores": np.array([-float(i) for i in range(len(texts))], np.float32),
            "tokenizer.ggml.token_type": np.array([2, 3, 3] + [6] * 256 + [1] * len(pieces), np.int32),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
        }
    )


class Kit:
    """What the tests use, in one fixture (test files cannot import each other)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.compiler = StructureCompiler(tokenizer)

    def compile(self, kind: str, value: object = "") -> TokenConstraint:
        return self.compiler.compile(Structure(kind, value))

    def allowed(self, constraint: TokenConstraint) -> list[int]:
        """Ids that the mask allows; the row is longer than the vocabulary and dirty, and must be written whole."""
        mask = np.full((self.tokenizer.vocab_size + 31) // 32 + 3, 0xFFFFFFFF, np.uint32)
        constraint.fill_mask(mask)
        return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()

    def find_id(self, text: str) -> int:
        """The token that is spelled like this in the file."""
        return self.tokenizer._vocabulary.texts.index(text)

    def accepts(self, constraint: TokenConstraint, text: str) -> bool:
        """Whether `text` can be written, by the shortest token that the mask allows each time, and may end there."""
        rest = text.encode()
        while rest:
            pieces = {i: self.tokenizer.token_bytes(i) for i in self.allowed(constraint)}
            fitting = [i for i, piece in pieces.items() if piece and rest.startswith(piece)]
            if not fitting:
                return False
            token_id = min(fitting, key=lambda i: len(pieces[i]))
            constraint.accept(token_id)
            rest = rest[len(pieces[token_id]) :]
        return not self.tokenizer.eos_token_ids.isdisjoint(self.allowed(constraint))

    def generate(
        self, constraint: TokenConstraint, choose: Callable[[Sequence[int]], int], max_tokens: int = 400
    ) -> list[int] | None:
        """Ids up to the first end token, which is left out; None if none came within `max_tokens`."""
        ids: list[int] = []
        for _ in range(max_tokens):
            allowed = self.allowed(constraint)
            assert allowed
            token_id = choose(allowed)
            constraint.accept(token_id)
            if token_id in self.tokenizer.eos_token_ids:
                return ids
            assert not constraint.is_complete or not set(self.allowed(constraint)) - self.tokenizer.eos_token_ids
            ids.append(token_id)
        return None


@pytest.fixture(scope="session")
def kit() -> Kit:
    """A byte-level vocabulary."""
    return Kit(make_byte_level())


@pytest.fixture(scope="session")
def sentencepiece_kit() -> Kit:
    """A SentencePiece vocabulary, which puts a space before a text."""
    return Kit(make_sentencepiece())


@pytest.fixture(scope="session")
def make_kit() -> Callable[[Tokenizer], Kit]:
    """A kit for another tokenizer."""
    return Kit


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The default model, for tests marked `model`."""
    import os

    return Path(os.environ["PELTON_TEST_MODEL"])
