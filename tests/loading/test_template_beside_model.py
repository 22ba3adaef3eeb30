"""Where the chat template comes from: the file's metadata first, then the files beside it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pelton.core.errors import ModelFileError
from pelton.loading.model import _load_text

METADATA: dict[str, object] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "a"],
    "tokenizer.ggml.scores": np.zeros(4, np.float32),
    "tokenizer.ggml.token_type": np.array([2, 3, 3, 1], np.int32),
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
}
CHAT = [{"role": "user", "content": "x"}]
SOURCE = "{{ bos_token }}%s{{ messages[0].content }}{{ eos_token }}"


def render(folder: Path, metadata: dict[str, object]) -> str | None:
    _, template = _load_text(folder / "model.gguf", metadata)
    return None if template is None else template.render(CHAT)


def test_file_without_template_takes_the_one_beside_it(tmp_path: Path) -> None:
    assert render(tmp_path, METADATA) is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": SOURCE % "config "}))
    assert render(tmp_path, METADATA) == "<s>config x</s>"
    (tmp_path / "chat_template.jinja").write_text(SOURCE % "file ")
    assert render(tmp_path, METADATA) == "<s>file x</s>"
    own = {**METADATA, "tokenizer.chat_template": SOURCE % "own "}
    assert render(tmp_path, own) == "<s>own x</s>"


def test_damaged_file_beside_a_model_without_template_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json"):
        render(tmp_path, METADATA)
