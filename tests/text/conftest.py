"""Tiny self-made vocabularies of each kind, as the metadata a GGUF reader gives, and the default model's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from pelton.core.config import read_environment
from pelton.loading.gguf import open_gguf
from pelton.text.gguf_vocab import build_gguf_tokenizer
from pelton.text.tokenizer import Tokenizer

Metadata = dict[str, object]
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTROL, USER_DEFINED = 3, 4


def _byte_alphabet() -> list[str]:
    """GPT-2's table as its authors wrote it: printable bytes first, then the others from U+0100."""
    printable = list(range(ord("!"), ord("~") + 1)) + list(range(0xA1, 0xAD)) + list(range(0xAE, 0x100))
    characters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in characters:
            characters[byte] = chr(256 + len(characters) - len(printable))
    return [characters[byte] for byte in range(256)]


@pytest.fixture(scope="session")
def byte_alphabet() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary."""
    return _byte_alphabet()


@pytest.fixture(scope="session")
def make_byte_level() -> Callable[..., Metadata]:
    """Return a function that makes metadata of a byte-level vocabulary: 256 bytes, merges, then special tokens."""

    def make(
        merges: Sequence[str] = (),
        *,
        special: Sequence[str] = ("<s>", "</s>"),
        kinds: Sequence[int] = (),
        tokens: Sequence[str] | None = None,
        **keys: object,
    ) -> Metadata:
        alphabet = list(_byte_alphabet()) if tokens is None else list(tokens)
        texts = alphabet + [merge.replace(" ", "") for merge in merges if merge.replace(" ", "") not in alphabet]
        num_normal = len(texts)
        texts += special
        token_kinds = [1] * num_normal + (list(kinds) or [CONTROL] * len(special))
        metadata: Metadata = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": texts,
            "tokenizer.ggml.token_type": np.array(token_kinds, dtype=np.int32),
            "tokenizer.ggml.merges": list(merges) or ["a b"],
        }
        if not merges:
            texts.insert(num_normal, "ab")
            metadata["tokenizer.ggml.token_type"] = np.array([1, *token_kinds], dtype=np.int32)
        if special:
            metadata["tokenizer.ggml.bos_token_id"] = texts.index(special[0])
            metadata["tokenizer.ggml.eos_token_id"] = texts.index(special[-1])
        metadata.update({f"tokenizer.ggml.{name}": value for name, value in keys.items()})
        return metadata

    return make


@pytest.fixture(scope="session")
def make_sentencepiece() -> Callable[..., Metadata]:
    """Return a function that makes metadata of a SentencePiece vocabulary: <unk>, <s>, </s>, 256 bytes, pieces."""

    def make(pieces: dict[str, float], *, special: Sequence[tuple[str, int]] = (), **keys: object) -> Metadata:
        texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
        texts += [text for text, _ in special]
        kinds = [2, 3, 3] + [6] * 256 + [1] * len(pieces) + [kind for _, kind in special]
        scores = [0.0] * 259 + list(pieces.values()) + [-1000.0] * len(special)
        return {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": texts,
            "tokenizer.ggml.scores": np.array(scores, dtype=np.float32),
            "tokenizer.ggml.token_type": np.array(kinds, dtype=np.int32),
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
            **{f"tokenizer.ggml.{name}": value for name, value in keys.items()},
        }

    return make


@pytest.fixture(scope="session")
def byte_tokenizer(make_byte_level: Callable[..., Metadata]) -> Tokenizer:
    """One token for each byte, and `ab`."""
    return build_gguf_tokenizer(make_byte_level())


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file; skips where it is not downloaded."""
    named = os.environ.get("PELTON_TEST_MODEL")
    path = Path(named) if named else read_environment().cache_dir / "models" / MODEL_FILE
    if not path.is_file():
        pytest.skip(f"the default model is not at {path}")
    return path


@pytest.fixture(scope="session")
def smollm2_metadata(smollm2_path: Path) -> Metadata:
    """Metadata of the default model."""
    with open_gguf(smollm2_path) as file:
        return dict(file.metadata)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_metadata: Metadata) -> Tokenizer:
    """The tokenizer of the default model."""
    return build_gguf_tokenizer(smollm2_metadata)
