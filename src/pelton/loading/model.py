"""A model file becomes a `LoadedModel`: config, packed weights, tokenizer and chat template.

Entry point: `load_model`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pelton._native import ThreadPool
from pelton.compute.native import choose_threads
from pelton.core.config import EngineConfig
from pelton.core.errors import ModelFileError
from pelton.core.model_config import ModelConfig
from pelton.loading.gguf import GgufFile, open_gguf
from pelton.loading.tensor_source import GgufTensorSource
from pelton.models.registry import get_family
from pelton.text.chat_template import ChatTemplate
from pelton.text.gguf_vocab import build_gguf_tokenizer
from pelton.text.tokenizer import Tokenizer
from pelton.text.tokenizer_json import load_chat_template, load_tokenizer_json


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run. `forward` is its pass over any `Ops`, weights bound; `pool` packed them and runs it.

    `forward_hidden` is the pass without its output matrix.
    """

    path: Path
    config: ModelConfig
    forward: Callable[[Any], Any]  # Any: works on the values of whichever Ops it is given
    forward_hidden: Callable[[Any], Any]  # Any: the same
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    pool: ThreadPool
    num_weight_bytes: int


def load_model(path: Path, config: EngineConfig | None = None) -> LoadedModel:
    """Read the GGUF model at `path`; its weights are packed on `config.threads` threads.

    Raises `ModelNotFoundError`, `ModelFileError` or `UnsupportedModelError`, and `ConfigError` for too many threads.
    """
    pool = ThreadPool(choose_threads((config or EngineConfig()).threads))
    with open_gguf(path) as file, ThreadPoolExecutor(max_workers=1) as background:
        family = get_family(file.metadata.get("general.architecture"))
        # The tokenizer takes as long as the weights; native packing leaves the interpreter to it.
        pending = background.submit(_load_text, path, file.metadata)
        source = GgufTensorSource(file, pool)
        model_config = family.read_config(file.metadata, source, _read_vocab_size(file))
        weights = family.load_weights(model_config, source)
        tokenizer, template = pending.result()
    if tokenizer.vocab_size > model_config.vocab_size:
        raise ModelFileError(
            f"{path}: the vocabulary has {tokenizer.vocab_size} tokens, token_embd.weight has rows for "
            f"{model_config.vocab_size}"
        )
    model_config = dataclasses.replace(
        model_config, bos_token_id=tokenizer.bos_token_id, eos_token_ids=tuple(sorted(tokenizer.eos_token_ids))
    )
    return LoadedModel(
        path=path,
        config=model_config,
        forward=lambda ops: family.forward(ops, model_config, weights),
        forward_hidden=lambda ops: family.forward_hidden(ops, model_config, weights),
        tokenizer=tokenizer,
        chat_template=template,
        pool=pool,
        num_weight_bytes=source.num_weight_bytes,
    )


def _read_vocab_size(file: GgufFile) -> int:
    tensor = file.tensors.get("token_embd.weight")
    if tensor is None or len(tensor.shape) != 2:
        raise ModelFileError(f"{file.path}: tensor 'token_embd.weight' is missing or not a matrix")
    return tensor.shape[0]


def _load_text(path: Path, metadata: Mapping[str, object]) -> tuple[Tokenizer, ChatTemplate | None]:
    """Tokenizer and template from the file's own metadata.

    A tokenizer.json beside it serves a file without a tokenizer, and chat_template.jinja or tokenizer_config.json one
    without a template.
    """
    beside = path.parent / "tokenizer.json"
    if "tokenizer.ggml.model" not in metadata and beside.is_file():
        tokenizer = load_tokenizer_json(beside)
    else:
        tokenizer = build_gguf_tokenizer(metadata)
    source = metadata.get("tokenizer.chat_template")
    if source is None:
        source = load_chat_template(path.parent)
    if source is None:
        return tokenizer, None
    if not isinstance(source, str):
        raise ModelFileError(f"{path}: metadata key tokenizer.chat_template is not a string")
    return tokenizer, ChatTemplate(source, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)
